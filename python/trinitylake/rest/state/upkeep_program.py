"""The program of the process that tidies up tables for a server (`upkeep_process.py`)."""

from __future__ import annotations

import pickle
import sys
from multiprocessing.connection import Connection

from trinitylake import _core
from trinitylake.base.log_note import LogNote
from trinitylake.errors import TrinityLakeError
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.upkeep import tidied
from trinitylake.rest.state.limited_memory import limit_memory


def main() -> None:
    """Tidy up, and tell the name of each table that is begun and each time that a file of it is done; then the whole.

    Arguments of the program: the descriptor of the connection, and how many bytes of memory it may take.
    """
    connection = Connection(int(sys.argv[1]))
    storage, left_out = pickle.loads(connection.recv_bytes())
    limit_memory(int(sys.argv[2]))
    try:
        lake = Lakehouse(_core.Lakehouse.open(storage.storage))
        done: object = tidied(lake, LogNote("upkeep", ""), left_out=left_out, began=connection.send)
    except TrinityLakeError as error:
        done = error
    connection.send(done)


if __name__ == "__main__":
    main()
