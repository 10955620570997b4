"""Parts of scripts/train_text.py."""
