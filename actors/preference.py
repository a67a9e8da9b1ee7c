"""`preferred_device` over one shared work queue: who prefers another evaluator is handed back for a while.

The preferred one fetches it when it has a free slot; after `TURNS` hand-backs whoever has it judges it, so a preference
never costs more than about a second, and none that is gone keeps work waiting.
"""

from bus.messages import Evaluation

NAME = "preferred_evaluator"
"""In `Evaluation.settings`, beside the judging settings; no part of the candidate key."""
TURNS = 8
PAUSE_S = 0.1


def hand_back_s(evaluation: Evaluation, evaluator: str, deliveries: int) -> float:
    """How long to leave the work to the evaluator that it prefers (raise `bus.worker.Retry` with it); 0: take it."""
    preferred = evaluation.settings.get(NAME, "")
    return PAUSE_S if preferred and preferred != evaluator and deliveries <= TURNS else 0.0
