"""A `Query` that only runs the model: for driving an attack by hand."""

import torch


class PlainQuery:
    """`look` sees every image shown, and whether it may lie outside the ball."""

    def __init__(self, model, look=lambda images, rows, outside: None, rows=None):
        self.model, self.look, self.index = model, look, rows
        self.classes = getattr(model, "vocab_size", 0)
        self.forwards = self.backwards = 0

    def logits(self, x, *, outside=False):
        self.look(x, self.index, outside)
        self.forwards += 1
        with torch.no_grad():
            return self.model(x)

    def logits_of_each(self, proposals, *, outside=False):
        return (self.logits(x, outside=outside) for x in proposals)

    def gradient(self, x, loss, *, outside=False):
        self.look(x, self.index, outside)
        self.forwards += 1
        self.backwards += 1
        x = x.detach().requires_grad_()
        losses = loss(self.model(x))
        return losses.detach(), torch.autograd.grad(losses.sum(), x)[0]

    def gradient_of_each(self, x, losses, *, outside=False):
        return (self.gradient(x, loss, outside=outside) for loss in losses)

    def rows(self, mask):
        index = mask.nonzero()[:, 0] if self.index is None else self.index[mask]
        return PlainQuery(self.model, self.look, index)

    def module(self):
        return self.model
