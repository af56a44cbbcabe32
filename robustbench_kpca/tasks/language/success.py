"""Stand-in."""

import torch
from robustbench_kpca.attack_loop.success import Success
from robustbench_kpca.types import IGNORE


class HigherLoss(Success):
    graded = True

    def judge(self, logits, labels, sign=1):
        kept = labels != IGNORE
        own = logits.log_softmax(1).gather(1, labels.clamp_min(0)[:, None])[:, 0].double()
        return logits.argmax(1), (own * kept).flatten(1).sum(1) / kept.flatten(1).sum(1)

    def reached(self, predictions, targets, *, targeted):
        return torch.zeros(len(predictions), dtype=torch.bool)

    def share(self, predictions, labels):
        kept = labels != IGNORE
        return ((predictions == labels) & kept).flatten(1).sum(1).double() / kept.flatten(1).sum(1)

    def unanswered(self, predictions):
        return (predictions < 0).flatten(1).any(1)

    def split(self, rows):
        return list(rows.cpu())

    def join(self, answers, device=None):
        return torch.stack(list(answers)).to(device)

    def check_protocol(self, protocol, attacks):
        pass
