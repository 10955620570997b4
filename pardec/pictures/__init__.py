"""Pictures of coloured shapes: captions, drawing, reading back from pixels, and how near two sets of pictures are."""
