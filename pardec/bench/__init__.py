"""Where the time of decoding goes, beside the floor that the machine sets and beside other people's loops."""
