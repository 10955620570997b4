"""Parts of scripts/train_image.py."""
