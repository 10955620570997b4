/* Copies slots of many stores of keys or values to other slots in one call. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Copies slots source [count] to target [count] of each of `stores`; all slots of a store are read before any is
 * written. `shapes` has four numbers per store: the bytes from one slot to the next, the number of heads, the bytes
 * from one head to the next, and the bytes of a head, which are contiguous. Returns 0, or 1 if memory runs out. */
int pardec_move(char *const *store, const ptrdiff_t *shapes, int stores, const int64_t *source, const int64_t *target,
                int count)
{
    ptrdiff_t most = 0;
    for (int i = 0; i < stores; i++) {
        ptrdiff_t bytes = shapes[4 * i + 1] * shapes[4 * i + 3];
        most = bytes > most ? bytes : most;
    }
    char *room = malloc(most * count + 1);
    if (!room) return 1;
    for (int i = 0; i < stores; i++) {
        const ptrdiff_t *shape = shapes + 4 * i, heads = shape[1], bytes = shape[3];
        for (int n = 0; n < count; n++)
            for (int h = 0; h < heads; h++)
                memcpy(room + (n * heads + h) * bytes, store[i] + source[n] * shape[0] + h * shape[2], bytes);
        for (int n = 0; n < count; n++)
            for (int h = 0; h < heads; h++)
                memcpy(store[i] + target[n] * shape[0] + h * shape[2], room + (n * heads + h) * bytes, bytes);
    }
    free(room);
    return 0;
}
