"""The sizes that models come in. Nothing here needs torch."""

from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class ViTShape:
    """Shape of a plain ViT; the names are timm's."""

    img_size: int
    patch_size: int
    embed_dim: int
    depth: int
    num_heads: int
    num_classes: int
    mlp_ratio: float = 4.0
    drop_path_rate: float = 0.0


@dataclass(frozen=True)
class ViTWithStem(ViTShape):
    """Shape of a ViT whose stem can be chosen: `patch`, one convolution as usual, or `conv`, several (`vit.py`)."""

    stem: str = "patch"


@dataclass(frozen=True)
class FANShape(ViTShape):
    """Shape of a FAN."""

    cls_layers: int = 2


@dataclass(frozen=True)
class SegmenterShape(ViTShape):
    """Shape of a Segmenter.

    Attributes:
        img_size: side of the windows that it is trained on.
        decoder: `mask`, the mask transformer, or `linear`.
        decoder_depth: number of blocks of the mask transformer.
        decoder_dropout: in these blocks.
        prefix_tokens: tokens before the patches: 1 is the class token, 2 adds DeiT's distillation token.
        normalisation: `deit`: ImageNet's mean and standard deviation; `vit`: 0.5 for both.
    """

    decoder: str = "mask"
    decoder_depth: int = 2
    decoder_dropout: float = 0.1
    prefix_tokens: int = 1
    normalisation: str = "deit"


@dataclass(frozen=True)
class SequenceShape:
    """Shape of an encoder of sequences.

    Attributes:
        length: length of a sequence, with its padding.
        channels: number of channels of a signal; tokens have 1.
        vocabulary: number of words; 0 for signals.
        patch_size: places of a signal that become one token; 1 for tokens.
        dropout: after the embedding, in attentions and after their layers and perceptrons.
        head_hidden: width of the classifier's hidden layer; 0: it is one linear layer.
        places: `learned`, or `grid`: sinusoids of row and column of a square picture are added to learned positions.

    The others are named as in timm's ViT.
    """

    length: int
    channels: int
    vocabulary: int
    patch_size: int
    embed_dim: int
    depth: int
    num_heads: int
    num_classes: int
    mlp_ratio: float = 2.0
    drop_path_rate: float = 0.0
    dropout: float = 0.0
    head_hidden: int = 0
    places: str = "learned"


@dataclass(frozen=True)
class PairShape(SequenceShape):
    """Shape of an encoder of pairs: both sequences, of `length` each, are encoded apart, and judged together."""

    texts: int = 2


@dataclass(frozen=True)
class LanguageShape:
    """Shape of a decoder for language.

    Attributes:
        vocab_size: number of words.
        window: number of words that it reads at most.
        embed_dim: width of a word, and of all heads of an attention together.
        depth: number of blocks.
        num_heads: number of heads of each attention.
        hidden: width of the perceptron of a block.
        design: `paper`, `modern` or `fairseq`; see `models/language.py`.
        dropout: after the embedding, attentions and perceptrons, and before the head.
    """

    vocab_size: int
    window: int
    embed_dim: int
    depth: int
    num_heads: int
    hidden: int
    design: str = "modern"
    dropout: float = 0.0


VIT = {
    "digits": ViTWithStem(32, 8, embed_dim=48, depth=4, num_heads=3, num_classes=10, mlp_ratio=3.0),
    "cifar": ViTWithStem(32, 4, embed_dim=192, depth=12, num_heads=3, num_classes=10),
    "tiny_patch16_224": ViTWithStem(224, 16, embed_dim=192, depth=12, num_heads=3, num_classes=1000),
    "small_patch16_224": ViTWithStem(224, 16, embed_dim=384, depth=12, num_heads=6, num_classes=1000),
    "base_patch16_224": ViTWithStem(224, 16, embed_dim=768, depth=12, num_heads=12, num_classes=1000),
}
FAN = {
    "digits": FANShape(32, 8, embed_dim=24, depth=3, num_heads=2, num_classes=10, mlp_ratio=2.0, cls_layers=1),
    "cifar": FANShape(32, 4, embed_dim=192, depth=12, num_heads=4, num_classes=10),
    "tiny": FANShape(224, 16, embed_dim=192, depth=12, num_heads=4, num_classes=1000),
}
_ADE20K = partial(SegmenterShape, 512, 16, num_classes=150)
SEGMENTER = {
    "segmenter_tiny": _ADE20K(embed_dim=192, depth=12, num_heads=3),
    "segmenter_small": _ADE20K(embed_dim=384, depth=12, num_heads=6),
    "segmenter_base": _ADE20K(embed_dim=768, depth=12, num_heads=12),
    "camvid": SegmenterShape(160, 8, embed_dim=96, depth=4, num_heads=2, num_classes=11, mlp_ratio=3.0),
    "shapes": SegmenterShape(
        64, 4, embed_dim=64, depth=3, num_heads=2, num_classes=8, mlp_ratio=2.0, decoder_depth=1, decoder_dropout=0.0
    ),
}
_ARENA = partial(SequenceShape, channels=1, vocabulary=258, patch_size=1, embed_dim=64, depth=2, num_heads=2)
SEQUENCE = {
    "listops": SequenceShape(32, 1, 17, 1, embed_dim=64, depth=2, num_heads=2, num_classes=10),
    "texts": SequenceShape(128, 1, 20_000, 1, embed_dim=64, depth=2, num_heads=2, num_classes=2),
    "waves": SequenceShape(32, 2, 0, 4, embed_dim=32, depth=2, num_heads=2, num_classes=4),
    "pixels": _ARENA(1_024, num_classes=10),
    "pathfinder": _ARENA(1_024, num_classes=2),
    "bytes": _ARENA(4_096, num_classes=2),
    "retrieval": PairShape(4_096, 1, 258, 1, embed_dim=64, depth=2, num_heads=2, num_classes=2),
}
"""Width 64, 2 layers and 2 heads are those of the Long Range Arena in Chen et al. (2023)."""

_WIKITEXT_103 = partial(LanguageShape, 267_735, 256, embed_dim=128)
LANGUAGE = {
    "tiny": LanguageShape(50, 32, embed_dim=32, depth=2, num_heads=2, hidden=128),
    "excerpt": LanguageShape(5_630, 128, embed_dim=64, depth=4, num_heads=4, hidden=256),
    "small": _WIKITEXT_103(depth=8, num_heads=4, hidden=512),
    "paper": _WIKITEXT_103(depth=16, num_heads=8, hidden=2048, design="paper", dropout=0.1),
    "fairseq": LanguageShape(
        267_735, 512, embed_dim=512, depth=6, num_heads=8, hidden=2048, design="fairseq", dropout=0.1
    ),
}
