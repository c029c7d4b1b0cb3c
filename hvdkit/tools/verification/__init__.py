"""The tool ``hvdkit verify``: do N processes compute what one would, for a recipe of the user's own?"""
