"""Operations with a definition that runs anywhere and, where it pays, a Triton version beside it."""
