"""What each rank of ``hvdkit.run`` runs: ``python -m hvdkit.tools.launch.call FOLDER``."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import cloudpickle

from hvdkit.errors import LaunchError
from hvdkit.process.environment import launched_as


def main(folder: Path) -> None:
    """Call the function in a folder, and put its result beside it.

    Raises:
        LaunchError: The result cannot be pickled.
    """
    sys.path.extend(entry for entry in json.loads((folder / "path.json").read_text()) if entry not in sys.path)
    function, args, kwargs = pickle.loads((folder / "function.pickle").read_bytes())
    result = function(*args, **kwargs)
    try:
        data = cloudpickle.dumps(result)
    except Exception as error:  # noqa: BLE001 - objects raise what they like when they are pickled
        raise LaunchError(
            f"the result, a {type(result).__name__}, cannot be sent back ({error}); return numbers or arrays"
        ) from None
    (folder / f"result-{launched_as().rank}.pickle").write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
