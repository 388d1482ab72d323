"""The merge of what the clients of `FederatedPCA` have sent, by sums where that serves."""

from __future__ import annotations

from .._base.adjusting import AdjustingMixin
from .._validation.checks import number_or_none
from ..communication import CommunicationLog
from ..summary import Subspace
from ..summary._metric import alike, merged
from ._merge import MergeStrategy
from ._merge_rounds import Made, NewMessages, merge_in_rounds


class MergeSentMixin(AdjustingMixin):
    """Merge the summaries of clients in units that fit how rows are adjusted."""

    communication_: CommunicationLog
    _sent: list[Subspace]
    _trust: str | None
    _takes_all: bool

    def _merged(
        self, strategy: MergeStrategy, whole: list[Subspace], made: Made
    ) -> tuple[Subspace, list[Subspace]]:
        """The merge of the summaries of all clients, and what they have sent for it."""
        adjusting = self._adjusting(whole[0].n_features, whole[0].feature_names)
        wanted = number_or_none(self.n_components)
        if strategy._adds_up and adjusting:
            kept = strategy.directions_kept(whole, self._with_confounders(wanted))
            total = merged(whole, kept, adjusting, wanted)
            new = NewMessages(self.communication_, self._sent)
            new.record(whole)
            return total, new.sent
        summaries, undone = alike(whole, adjusting, wanted, not self._takes_all, made.of)
        new = NewMessages(self.communication_, self._sent, zip(summaries, whole, strict=True))
        kept = strategy.directions_kept(summaries, self._with_confounders(wanted))
        subspace = merge_in_rounds(
            strategy,
            summaries,
            kept,
            kept,
            record=None if self._trust == "sum" else new.record,  # sums were logged
            made=made,
        )
        return undone(subspace), new.sent
