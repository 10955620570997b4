/* Runs the matmul of packed weights on files: kind, whether x is rounded, rows of x, rows and columns of the weights,
 * then the files of the panels, of x, and of the output. */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int pardec_blocks(int, int, int, const void *, ptrdiff_t, const uint8_t *, const void *, ptrdiff_t, int, void *,
                  ptrdiff_t, int, int, int, int);

static uint8_t panels[1 << 22];
static float x[1 << 16], out[1 << 16];

int main(int count, char **words)
{
    if (count != 9) return 2;
    int rows = atoi(words[3]), columns = atoi(words[4]), length = atoi(words[5]);
    FILE *file = fopen(words[6], "rb");
    if (!file || !fread(panels, 1, sizeof panels, file)) return 2;
    fclose(file);
    file = fopen(words[7], "rb");
    if (!file || !fread(x, 1, sizeof x, file)) return 2;
    fclose(file);
    int failed = pardec_blocks(atoi(words[1]), atoi(words[2]), 0, x, length, panels, NULL, 0, 0, out, columns, rows,
                               columns, length, 1);
    file = fopen(words[8], "wb");
    if (!file) return 2;
    fwrite(out, sizeof *out, (size_t)rows * columns, file);
    return fclose(file) || failed;
}
