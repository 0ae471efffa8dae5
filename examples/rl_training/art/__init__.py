"""MBPP with ART: `train.py` is run by its path."""

if __name__ == "art":
    raise ImportError(
        "this is examples/rl_training/art and not the package openpipe-art: leave examples/rl_training out of sys.path"
    )
