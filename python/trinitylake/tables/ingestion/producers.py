"""Sequence numbers of producers, stored with the rows (`stored_position.py`).

The position of a producer in a table has the greatest sequence number whose rows the table has, and the id of the
writer that claimed the producer. A writer claims its producers before it writes. So an older writer of the same
producer, which may still run, fails instead of writing the same rows again (fencing, as with epochs in Kafka).
"""

from __future__ import annotations

from trinitylake import _core
from trinitylake.errors import InvalidArgument, ProducerFenced
from trinitylake.tables.stored_position import StoredPosition

#: The namespace that contains a namespace for each producer.
PRODUCERS = "_producers"
_NO_SEQUENCE, _NO_WRITER = "none", "unclaimed"


class Producer:
    """The stored state of a producer, read and written as a part of a transaction.

    Attributes:
        sequence: the greatest sequence number whose rows the table has; None for no number.
        checksum: of the input before that number; empty if it is unknown.
    """

    def __init__(self, transaction: _core.Transaction, name: str, table_id: str) -> None:
        self._name = name
        self._stored = StoredPosition(transaction, f"{PRODUCERS}.{name}", table_id)
        sequence, _, claim = (self._stored.text or f"{_NO_SEQUENCE} {_NO_WRITER}").partition(" ")
        self._writer, _, self.checksum = claim.partition(" ")
        if not (sequence.isdecimal() or sequence == _NO_SEQUENCE):
            raise InvalidArgument(
                f"property {table_id} of namespace {PRODUCERS}.{name} is {self._stored.text!r}, which does not begin "
                "with a sequence number: restore the property, or drop the namespace to begin again"
            )
        self.sequence = None if sequence == _NO_SEQUENCE else int(sequence)

    def check_writer(self, writer: str, sequence: int | None) -> None:
        """Raise `ProducerFenced` if another writer claimed the producer, or if `sequence` is not the stored number."""
        if self._writer != writer:
            raise ProducerFenced(
                f"producer {self._name} belongs to another writer, which was opened later, or to a server: "
                "end this writer, so that no row is written twice"
            )
        if self.sequence != sequence:
            raise ProducerFenced(
                f"the stored sequence number of producer {self._name} changed from {sequence} to {self.sequence}, for "
                "example by a rollback: open another writer, and continue after last_sequence()"
            )

    def claim(self, writer: str | None) -> None:
        """Store the id of a writer, unless it is already stored. None removes a claim."""
        if self._writer != writer:
            self.store(self.sequence, writer, self.checksum)

    def store(self, sequence: int | None, writer: str | None, checksum: str = "") -> None:
        """Store a sequence number and the id of a writer; None for a server, which claims no producer."""
        words = _NO_SEQUENCE if sequence is None else str(sequence), writer or _NO_WRITER, checksum
        self._stored.store(" ".join(words).rstrip())
