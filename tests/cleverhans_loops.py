"""The attacks of CleverHans 4.0.0 for PyTorch, transcribed from its documented steps as plain loops over images.

`net` maps one image in the attack's space to logits. Every function attacks the class that `net` predicts, clips
nothing (but C&W, to [0, 1]), and returns the last iterate. Random numbers are arguments.
"""

import torch
from torch.nn import functional as F  # noqa: N812


def predicted(net, x):
    with torch.no_grad():
        return net(x[None]).argmax(1)


def slope(net, x, y):
    x = x.clone().requires_grad_()
    F.cross_entropy(net(x[None]), y).backward()
    return x.grad


def fgsm(net, x, eps):
    return x + eps * slope(net, x, predicted(net, x)).sign()


def pgd(net, x, first, eps, step, steps):
    y, image = predicted(net, x), first
    for _ in range(steps):
        moved = image + step * slope(net, image, y).sign()
        image = x + torch.clamp(moved - x, -eps, eps)
    return image


def sparse_l1_descent(net, x, eps=10.0, step=1.0, steps=20, percent=99):
    y, image = predicted(net, x), x
    for _ in range(steps):
        gradient = slope(net, image, y)
        least = gradient.abs().flatten().sort().values[int(percent / 100 * x.numel()) - 1]
        chosen = gradient.abs() >= least
        moved = image + step * gradient.sign() * chosen / chosen.sum()
        length = (moved - x).abs().sum()
        image = x + (moved - x) * (eps / length if length > eps else 1.0)
    return image


def lead(logits, y):
    """By how much the logit of y exceeds every other, for a batch of probes."""
    others = torch.cat([logits[:, :y], logits[:, y + 1 :]], 1)
    return logits[:, int(y)] - others.max(1).values


def spsa(net, x, first, signs, eps=0.1, lr=0.01, delta=0.01):
    """`signs`: one stack of sign images for every step, each of which is probed on both sides."""
    y, change = predicted(net, x), first - x
    adam = torch.optim.Adam([change], lr=lr)
    for drawn in signs:
        both = torch.cat([drawn, -drawn])
        pert = x + delta * both  # the library's probe, which contains the image already
        with torch.no_grad():
            lost = lead(net(x + pert), y)
        change.grad = (lost.view(-1, 1, 1, 1) * both).mean(0) / delta
        adam.step()
        change.clamp_(-eps, eps)
    return x + change


def carlini_wagner(net, x, steps, lr=0.005, runs=5, initial=0.01, confidence=1 / 255):
    """The bounds of c are c's own storage once they are set: what is written to c afterwards is written to them."""
    y, x = predicted(net, x), x.clamp(0, 1)
    start = torch.atanh((2 * x - 1) * 0.999999)
    change = torch.zeros_like(x, requires_grad=True)
    adam = torch.optim.Adam([change], lr=lr)
    c, lower, upper = (torch.tensor([value], dtype=x.dtype) for value in (initial, 0.0, 1e10))
    best, nearest = x, torch.inf
    for _ in range(runs):
        broken = False
        for _ in range(steps):
            image = (torch.tanh(change + start) + 1) / 2
            gap = lead(net(image[None]), y)[0]
            far = ((image - x) ** 2).sum()
            adam.zero_grad()
            (c[0] * (gap + confidence).clamp(min=0) + far).backward()
            adam.step()
            if gap + confidence < 0:
                broken = True
                if far < nearest:
                    best, nearest = image.detach(), far
        if broken:
            upper = c if c < upper else upper
            c[:] = (lower + upper) / 2
        else:
            lower = c if c > lower else lower
            c[:] = (lower + upper) / 2 if upper < 1e9 else 10 * c
    return best
