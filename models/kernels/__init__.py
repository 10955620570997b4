"""Operations: each has a definition that runs anywhere and, where faster, versions in Triton or C."""
