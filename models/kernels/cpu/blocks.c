/* Matmuls with the block-quantized weights of GGUF files, which stay packed in memory.
 *
 *     w[n, k] = q[n, k] * s[n, g] + m[n, g]
 *     out[i, n] = sum over k of x[i, k] * w[n, k] + base[i, n]
 *
 * A group g is 32 successive k (two halves of 16 with scales of their own in Q6_K). A code q has 4, 5, 6 or 8 bits.
 * Either x stays float32, and codes less a center c take the place of w:
 *
 *     out[i, n] = sum over g of s[n, g] * (sum of x * (q - c)) + (m[n, g] + c * s[n, g]) * (sum of x) + base[i, n]
 *
 * Or each group of x is rounded to int8:
 *
 *     d[i, g] = max over the k of g of |x[i, k]| / 127,   a[i, k] = x[i, k] / d[i, g], rounded to a whole number
 *     out[i, n] = sum over g of d[i, g] * (s[n, g] * (sum of a * q) + m[n, g] * (sum of a)) + base[i, n]
 *
 * A panel holds WIDTH rows of w, group after group, as blocks.py packs it. A row of x gives the same bits alone and in
 * any batch: every sum is made in one order, whatever the number of rows is.
 */

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__) && !defined(__AVX512VNNI__) && !defined(LANES)
#define LANES 8                 /* AVX-512 alone does not multiply bytes */
#endif

#include "block_types.h"
#include "vectors.h"

#if LANES == 16 && defined(__AMX_INT8__) && defined(__linux__)
#define MATRICES 1              /* the processor multiplies matrices of 16 rows of bytes, where Linux lets a process */
#include <sys/syscall.h>
#include <unistd.h>
#else
#define MATRICES 0
#endif

#if LANES == 16                 /* rows of x in a tile: its sums stay in registers */
#define FLOAT_ROWS 8
#define INT_ROWS 6
#elif LANES == 8
#define FLOAT_ROWS 6
#define INT_ROWS 4
#else
#define FLOAT_ROWS 3
#define INT_ROWS 4
#endif

#define VECTORS (WIDTH / LANES)
#define QUADS (GROUP / 4)       /* fours of k: the bytes that a dot product of int8 adds */
#define CODES (GROUP * WIDTH)   /* bytes of a panel's codes of a group, one each */
#define MOST 4                  /* groups that are summed before their sum is added to the total */
#define PARTS 6                 /* such sums at least: one long sum would lose more of float32's digits */
#define ROWS (LANES == 16 ? 144 : 64) /* rows of x that go over a panel together: of whole tiles */
#define STREAMS (LANES == 8 ? 4 : 1) /* panels that few rows read side by side: memory delivers several streams faster */
#define MATRIX_LEAST 16         /* rows from which on matrices of bytes are multiplied, where the processor does it */
#define MATRIX_ROWS 16
#define MATRIX_REST 7           /* rows after whole sixteens, from which on they are too; fewer are faster as vectors */
/* Bytes from the codes that are read to those that are prefetched, and bytes of a group that are. AMD's processors with
 * AVX-512, which older compilers take for Zen 3, fetch codes of 4 bits in time for 1 or 2 rows of x, and codes of 8 bits
 * for 2 to 4. */
#if defined(__AVX512F__) && (defined(__znver3__) || defined(__znver4__) || defined(__znver5__))
#define AHEAD(rows) ((rows) == 1 ? 4096 : (rows) <= INT_ROWS ? 8192 : 16384)
#define IN_TIME(rows, bits) ((bits) == 4 ? (rows) <= 2 : (bits) == 8 && (rows) > 1 && (rows) < 5)
#define FETCHED(kind, rows) (IN_TIME(rows, bytes_of_codes(kind) * 8 / CODES) ? 0 : bytes_of_group(kind))
#else
#define AHEAD(rows) (LANES == 16 ? 8192 : 4096)
#define FETCHED(kind, rows) bytes_of_group(kind)
#endif

typedef int8_t signed_bytes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* WIDTH float16 numbers as float32. */
INLINE void from_half(const uint8_t *x, float *out)
{
#if LANES == 16
    UNROLL for (int i = 0; i < WIDTH; i += LANES)
        *(vec *)(out + i) = (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(x + 2 * i)));
#elif defined(__F16C__)
    UNROLL for (int i = 0; i < WIDTH; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + 2 * i))));
#else
    for (int i = 0; i < WIDTH; i++) {
        uint16_t bits;
        memcpy(&bits, x + 2 * i, 2);
        uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff;
        union { uint32_t u; float f; } value = {rest << 13}, power = {(254u - 15) << 23};
        value.f *= power.f;                             /* denormal numbers as well */
        if (rest >= 0x7c00) value.u |= 0x7f800000;      /* infinite, or no number */
        value.u |= sign;
        out[i] = value.f;
    }
#endif
}

INLINE int is_super(const int kind) { return kind >= Q4_K; }

INLINE int has_minimum(const int kind) { return kind == Q4_1 || kind == Q5_1 || kind == Q4_K || kind == Q5_K; }

/* Whether codes are signed numbers of 8 bits; others are unsigned and smaller than 64. */
INLINE int is_wide(const int kind) { return kind == Q8_0 || kind == IQ4_NL; }

/* Number of quads whose products of codes and int8 fit a sum of 16 bits. */
INLINE int run_of(const int kind)
{
    return is_wide(kind) ? 1 : kind == Q6_K ? 2 : kind == Q5_0 || kind == Q5_1 || kind == Q5_K || kind == MXFP4 ? 4 : 8;
}

INLINE int bytes_of_codes(const int kind)
{
    switch (kind) {
    case Q5_0: case Q5_1: case Q5_K: return WIDTH * 20;
    case Q6_K: return WIDTH * 24;
    case Q8_0: return WIDTH * 32;
    default: return WIDTH * 16;
    }
}

/* Bytes before the codes of a group, and before the groups of a super block. */
INLINE int bytes_of_scales(const int kind)
{
    return is_super(kind) ? 2 * WIDTH : kind == MXFP4 ? WIDTH : has_minimum(kind) ? 4 * WIDTH : 2 * WIDTH;
}

INLINE int bytes_of_group(const int kind) { return bytes_of_scales(kind) + bytes_of_codes(kind); }

INLINE int bytes_of_head(const int kind) { return has_minimum(kind) ? 4 * WIDTH : 2 * WIDTH; }

INLINE ptrdiff_t start_of(const int kind, int g)
{
    ptrdiff_t group = bytes_of_group(kind);
    return is_super(kind) ? g / SUPER * (bytes_of_head(kind) + SUPER * group) + bytes_of_head(kind) + g % SUPER * group
                          : g * group;
}

/* A vector of codes of 4 bits through a table of 16 signed numbers. */
INLINE words looked_up(words x, const int8_t *table)
{
#if LANES == 16
    __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
    return (words)_mm512_shuffle_epi8(all, (__m512i)x);
#elif LANES == 8
    __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return (words)_mm256_shuffle_epi8(all, (__m256i)x);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return (words)vqtbl1q_s8(vld1q_s8(table), (uint8x16_t)x);
#else
    uint8_t bytes[4 * LANES];
    memcpy(bytes, &x, sizeof bytes);
    for (int i = 0; i < 4 * LANES; i++) bytes[i] = (uint8_t)table[bytes[i]];
    memcpy(&x, bytes, sizeof bytes);
    return x;
#endif
}

static const int8_t WHOLE[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const int8_t IQ4_NL_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t MXFP4_VALUES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}; /* each + 12 */

/* The codes of quads `quad` and `quad + 4` of a group, of the j-th vector of rows. */
INLINE void pair_of(const int kind, const uint8_t *x, int quad, int j, words *first, words *second)
{
    ptrdiff_t at = quad * WIDTH * 4 + j * 4 * LANES;
    if (kind == Q8_0) {
        *first = *(const words *)(x + at);
        *second = *(const words *)(x + CODES / 2 + at);
        return;
    }
    const words *high = (const words *)(x + WIDTH * 16 + j * 4 * LANES);    /* the bits above the lower 4 */
    words both = *(const words *)(x + at);
    *first = both & 0x0f0f0f0f, *second = (both >> 4) & 0x0f0f0f0f;
    if (kind == IQ4_NL || kind == MXFP4) {
        const int8_t *table = kind == IQ4_NL ? IQ4_NL_VALUES : MXFP4_VALUES;
        *first = looked_up(*first, table), *second = looked_up(*second, table);
    } else if (kind == Q6_K) {
        *first |= ((high[0] >> (2 * quad)) & 0x03030303) << 4;
        *second |= ((high[VECTORS] >> (2 * quad)) & 0x03030303) << 4;
    } else if (kind == Q5_0 || kind == Q5_1 || kind == Q5_K) {
        *first |= ((high[0] >> quad) & 0x01010101) << 4;
        *second |= ((high[0] >> (quad + 4)) & 0x01010101) << 4;
    }
}

/* The codes of a group as bytes: out[k / 4][row][k % 4]. */
INLINE void codes_of(const int kind, const uint8_t *x, uint8_t *out)
{
    UNROLL for (int j = 0; j < VECTORS; j++)
        UNROLL for (int quad = 0; quad < QUADS / 2; quad++) {
            words *to = (words *)(out + quad * WIDTH * 4 + j * 4 * LANES);
            pair_of(kind, x, quad, j, to, (words *)((uint8_t *)to + CODES / 2));
        }
}

/* Scales and minima of a group: s and m [2][WIDTH], of which the second is that of the second half in Q6_K. */
INLINE void scales_of(const int kind, const uint8_t *panel, int g, float *s, float *m)
{
    const uint8_t *x = panel + start_of(kind, g);
    if (kind == MXFP4) {
        for (int n = 0; n < WIDTH; n++) {
            uint32_t bits = x[n] < 2 ? 0x00200000u << x[n] : (uint32_t)(x[n] - 1) << 23;
            memcpy(s + n, &bits, 4);
            m[n] = -12 * s[n];
        }
    } else if (!is_super(kind)) {
        from_half(x, s);
        if (has_minimum(kind)) from_half(x + 2 * WIDTH, m);
        else for (int n = 0; n < WIDTH; n++) m[n] = is_wide(kind) ? 0 : s[n] * (kind == Q4_0 ? -8 : -16);
    } else {
        float d[WIDTH], least_of[WIDTH];
        const uint8_t *head = panel + start_of(kind, g / SUPER * SUPER) - bytes_of_head(kind);
        from_half(head, d);
        if (kind == Q6_K) {
            const int8_t *own = (const int8_t *)x;
            for (int n = 0; n < WIDTH; n++) s[n] = d[n] * own[n], m[n] = -32 * s[n];
            for (int n = 0; n < WIDTH; n++) s[WIDTH + n] = d[n] * own[WIDTH + n], m[WIDTH + n] = -32 * s[WIDTH + n];
        } else {
            from_half(head + 2 * WIDTH, least_of);
            for (int n = 0; n < WIDTH; n++) s[n] = d[n] * x[n], m[n] = -least_of[n] * x[WIDTH + n];
        }
    }
}

/* Codes, scales and minima of `count` groups of a panel from the first on: [count][CODES], [count][2][WIDTH]. */
#define UNPACK(kind)                                                                                               \
    static void unpack_##kind(const uint8_t *panel, int first, int count, uint8_t *codes, float *s, float *m)       \
    {                                                                                                              \
        for (int g = 0; g < count; g++) {                                                                          \
            const uint8_t *x = panel + start_of(kind, first + g) + bytes_of_scales(kind);                          \
            for (int line = 0; line < bytes_of_group(kind); line += 64)                                            \
                __builtin_prefetch(x + AHEAD(ROWS) + line, 0, 2);                                                 \
            codes_of(kind, x, codes + g * CODES);                                                                  \
            scales_of(kind, panel, first + g, s + g * 2 * WIDTH, m + g * 2 * WIDTH);                               \
        }                                                                                                          \
    }

UNPACK(Q4_0) UNPACK(Q4_1) UNPACK(Q5_0) UNPACK(Q5_1) UNPACK(Q8_0) UNPACK(IQ4_NL) UNPACK(MXFP4)
UNPACK(Q4_K) UNPACK(Q5_K) UNPACK(Q6_K)

typedef void (*Unpack)(const uint8_t *panel, int first, int count, uint8_t *codes, float *s, float *m);

static const Unpack UNPACKS[] = {unpack_Q4_0, unpack_Q4_1, unpack_Q5_0, unpack_Q5_1, unpack_Q8_0,
                                 unpack_IQ4_NL, unpack_MXFP4, unpack_Q4_K, unpack_Q5_K, unpack_Q6_K};

/* What is subtracted from codes, and added to minima: sums of numbers of both signs lose fewer digits. */
INLINE int center_of(const int kind)
{
    switch (kind) {
    case Q8_0: case IQ4_NL: return 0;
    case Q5_0: case Q5_1: case Q5_K: return 16;
    case Q6_K: return 32;
    case MXFP4: return 12;
    default: return 8;
    }
}

/* Whether a register holds all numbers of a code. */
INLINE int in_table(const int kind) { return LANES == 16 && bytes_of_codes(kind) == WIDTH * 16; }

/* The codes of quad `quad` of a half group, of the j-th vector of rows, for `number`. */
INLINE words quad_of(const int kind, const int half, const uint8_t *x, int quad, int j)
{
    if (in_table(kind)) return *(const words *)(x + quad * WIDTH * 4 + j * 4 * LANES) >> (4 * half);
    words two[2];
    pair_of(kind, x, quad, j, two, two + 1);
    return (words)((signed_bytes)two[half] - (int8_t)center_of(kind));
}

/* Byte i of each lane, a code less its center, as float32. */
INLINE vec number(const int kind, words x, const int i)
{
#if LANES == 16
    if (in_table(kind)) {
        const int8_t *all = kind == IQ4_NL ? IQ4_NL_VALUES : kind == MXFP4 ? MXFP4_VALUES : WHOLE;
        vec table = floats_of((ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)all)) - center_of(kind));
        return (vec)_mm512_permutexvar_ps((__m512i)(x >> (8 * i)), (__m512)table); /* by the lower 4 bits */
    }
#endif
    return floats_of((ints)(x << (24 - 8 * i)) >> 24);
}

#if LANES == 16
#define FEW_FLOAT 8             /* most rows that are multiplied with the packed codes; for more these are unpacked */
#define MOST_FLOAT 6            /* rows of x in a tile of these */
#define BESIDE(rows) ((rows) == 1 ? 4 : (rows) == 2 ? 2 : 1) /* panels of a tile: sums that need not wait for others */
#else
#define FEW_FLOAT 3
#define MOST_FLOAT 3
#define BESIDE(rows) 1
#endif

/* Groups that are summed before their sum is added to the total of a row. */
INLINE int groups_at_once(int groups) { return least(MOST, (groups + PARTS - 1) / PARTS); }

/* part + s * sum, of the products of a group, or of half a group with scales of its own; if it has `minima`, + m times
 * the sum of its x. */
INLINE vec with_scales(const int minima, vec sum, const float *s, const float *m, float sum_of_x, vec part)
{
    part = fused_add(*(const vec *)s, sum, part);
    return minima ? fused_add(*(const vec *)m, spread(sum_of_x), part) : part;
}

/* Scales of group g, and minima to which the center of the codes is added. */
INLINE void centered_scales(const int kind, const uint8_t *panel, int g, float *s, float *m)
{
    scales_of(kind, panel, g, s, m);
    if (!has_minimum(kind)) return;
    UNROLL for (int n = 0; n < WIDTH; n += LANES)
        *(vec *)(m + n) = fused_add(spread(center_of(kind)), *(const vec *)(s + n), *(const vec *)(m + n));
}

/* Each vector of sums in `few_floats`. */
#define EACH                                                                                                       \
    UNROLL for (int p = 0; p < panels; p++)                                                                        \
        UNROLL for (int r = 0; r < rows; r++)                                                                      \
            UNROLL for (int j = 0; j < VECTORS; j++)

/* `rows` rows of x [rows, step] times all groups of the panels w, BESIDE(rows) of them -> total [panels][rows][WIDTH].
 * `sums` [rows, groups] are those of x over each group. */
INLINE void few_floats(const int kind, const int rows, const uint8_t *const *w, int groups, const float *x,
                       ptrdiff_t step, const float *sums, float *total)
{
    const int halves = kind == Q6_K ? 2 : 1, panels = BESIDE(rows), each = groups_at_once(groups);
    vec all[BESIDE(1)][MOST_FLOAT][VECTORS], part[BESIDE(1)][MOST_FLOAT][VECTORS], sum[BESIDE(1)][MOST_FLOAT][VECTORS];
    EACH all[p][r][j] = (vec){0};
    for (int first = 0; first < groups; first += each) {
        EACH part[p][r][j] = (vec){0};
        for (int g = first; g < least(groups, first + each); g++) {
            const uint8_t *codes[BESIDE(1)];
            float s[BESIDE(1)][2 * WIDTH] __attribute__((aligned(64)));
            float m[BESIDE(1)][2 * WIDTH] __attribute__((aligned(64)));
            UNROLL for (int p = 0; p < panels; p++) {
                codes[p] = w[p] + start_of(kind, g) + bytes_of_scales(kind);
                for (int line = 0; line < bytes_of_group(kind); line += 64)
                    __builtin_prefetch(codes[p] + AHEAD(ROWS) + line, 0, 2);
                centered_scales(kind, w[p], g, s[p], m[p]);
            }
            EACH sum[p][r][j] = (vec){0};
            UNROLL for (int half = 0; half < 2; half++) {
                for (int quad = 0; quad < QUADS / 2; quad++) {
                    const float *own = x + g * GROUP + (half * QUADS / 2 + quad) * 4;
                    words four[BESIDE(1)][VECTORS];
                    UNROLL for (int p = 0; p < panels; p++)
                        UNROLL for (int j = 0; j < VECTORS; j++)
                            four[p][j] = quad_of(kind, half, codes[p], quad, j);
                    UNROLL for (int i = 0; i < 4; i++)
                        UNROLL for (int p = 0; p < panels; p++)
                            UNROLL for (int j = 0; j < VECTORS; j++) {
                                vec value = number(kind, four[p][j], i);
                                UNROLL for (int r = 0; r < rows; r++)
                                    sum[p][r][j] = fused_add(value, spread(own[r * step + i]), sum[p][r][j]);
                            }
                }
                if (halves == 1 && !half) continue;
                EACH {
                    const ptrdiff_t at = (halves == 2 ? half * WIDTH : 0) + j * LANES;
                    part[p][r][j] = with_scales(has_minimum(kind), sum[p][r][j], s[p] + at, m[p] + at,
                                                has_minimum(kind) ? sums[r * groups + g] : 0, part[p][r][j]);
                    sum[p][r][j] = (vec){0};
                }
            }
        }
        EACH all[p][r][j] += part[p][r][j];
    }
    EACH *(vec *)(total + (p * rows + r) * WIDTH + j * LANES) = all[p][r][j];
}

#define FLOAT_ARGUMENTS                                                                                            \
    const uint8_t *const *w, int groups, const float *x, ptrdiff_t step, const float *sums, float *total
#define FLOATS(kind, n)                                                                                            \
    static void floats_##kind##_##n(FLOAT_ARGUMENTS) { few_floats(kind, n, w, groups, x, step, sums, total); }
#if LANES == 16
#define FEW_FLOATS(kind)                                                                                           \
    FLOATS(kind, 1) FLOATS(kind, 2) FLOATS(kind, 3) FLOATS(kind, 4) FLOATS(kind, 5) FLOATS(kind, 6)
#define FEW_FLOATS_OF(kind)                                                                                        \
    {floats_##kind##_1, floats_##kind##_2, floats_##kind##_3, floats_##kind##_4, floats_##kind##_5, floats_##kind##_6}
#else
#define FEW_FLOATS(kind) FLOATS(kind, 1) FLOATS(kind, 2) FLOATS(kind, 3)
#define FEW_FLOATS_OF(kind) {floats_##kind##_1, floats_##kind##_2, floats_##kind##_3}
#endif

FEW_FLOATS(Q4_0) FEW_FLOATS(Q4_1) FEW_FLOATS(Q5_0) FEW_FLOATS(Q5_1) FEW_FLOATS(Q8_0) FEW_FLOATS(IQ4_NL)
FEW_FLOATS(MXFP4) FEW_FLOATS(Q4_K) FEW_FLOATS(Q5_K) FEW_FLOATS(Q6_K)

static void (*const FLOATS_BY[][MOST_FLOAT])(FLOAT_ARGUMENTS) = {
    FEW_FLOATS_OF(Q4_0), FEW_FLOATS_OF(Q4_1),  FEW_FLOATS_OF(Q5_0), FEW_FLOATS_OF(Q5_1), FEW_FLOATS_OF(Q8_0),
    FEW_FLOATS_OF(IQ4_NL), FEW_FLOATS_OF(MXFP4), FEW_FLOATS_OF(Q4_K), FEW_FLOATS_OF(Q5_K), FEW_FLOATS_OF(Q6_K)};

/* `rows` rows of x [rows, step] times `groups` groups of centered codes w [groups * GROUP][WIDTH]: added to total
 * [rows][WIDTH], at the end. `sums` [rows, apart] are those of x over each group. */
INLINE void dense_tile(const int rows, const int halves, const int minima, const float *w, const float *s,
                       const float *m, int groups, const float *x, ptrdiff_t step, const float *sums, ptrdiff_t apart,
                       float *total)
{
    const int columns = LANES == 8 && rows > 3 ? 2 : VECTORS;
    for (int first = 0; first < WIDTH; first += columns * LANES) {
        vec part[FLOAT_ROWS][VECTORS];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int j = 0; j < columns; j++)
                part[r][j] = (vec){0};
        for (int g = 0; g < groups; g++)
            for (int half = 0; half < halves; half++) {
                const ptrdiff_t from = g * GROUP + half * GROUP / halves, scale = (g * 2 + half) * WIDTH + first;
                vec sum[FLOAT_ROWS][VECTORS];
                UNROLL for (int r = 0; r < rows; r++)
                    UNROLL for (int j = 0; j < columns; j++)
                        sum[r][j] = (vec){0};
                for (ptrdiff_t k = from; k < from + GROUP / halves; k++)
                    UNROLL for (int r = 0; r < rows; r++) {
                        vec one = spread(x[r * step + k]);
                        UNROLL for (int j = 0; j < columns; j++)
                            sum[r][j] = fused_add(*(const vec *)(w + k * WIDTH + first + j * LANES), one, sum[r][j]);
                    }
                UNROLL for (int r = 0; r < rows; r++)
                    UNROLL for (int j = 0; j < columns; j++)
                        part[r][j] = with_scales(minima, sum[r][j], s + scale + j * LANES, m + scale + j * LANES,
                                                 minima ? sums[r * apart + g] : 0, part[r][j]);
            }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int j = 0; j < columns; j++)
                *(vec *)(total + r * WIDTH + first + j * LANES) += part[r][j];
    }
}

/* Centered codes w [count * GROUP][WIDTH], scales and minima of `count` groups of a panel from the first on. */
#define NUMBERS(kind)                                                                                              \
    static void numbers_##kind(const uint8_t *panel, int first, int count, float *w, float *s, float *m)            \
    {                                                                                                              \
        for (int g = 0; g < count; g++, s += 2 * WIDTH, m += 2 * WIDTH) {                                          \
            const uint8_t *codes = panel + start_of(kind, first + g) + bytes_of_scales(kind);                      \
            for (int line = 0; line < bytes_of_group(kind); line += 64)                                            \
                __builtin_prefetch(codes + AHEAD(ROWS) + line, 0, 2);                                              \
            centered_scales(kind, panel, first + g, s, m);                                                         \
            UNROLL for (int half = 0; half < 2; half++)                                                            \
                for (int quad = 0; quad < QUADS / 2; quad++, w += 4 * WIDTH)                                       \
                    UNROLL for (int j = 0; j < VECTORS; j++) {                                                     \
                        words four = quad_of(kind, half, codes, quad, j);                                          \
                        UNROLL for (int i = 0; i < 4; i++)                                                         \
                            *(vec *)(w + i * WIDTH + j * LANES) = number(kind, four, i);                           \
                    }                                                                                              \
        }                                                                                                          \
    }

NUMBERS(Q4_0) NUMBERS(Q4_1) NUMBERS(Q5_0) NUMBERS(Q5_1) NUMBERS(Q8_0) NUMBERS(IQ4_NL) NUMBERS(MXFP4)
NUMBERS(Q4_K) NUMBERS(Q5_K) NUMBERS(Q6_K)

static void (*const NUMBERS_BY[])(const uint8_t *, int, int, float *, float *, float *) = {
    numbers_Q4_0, numbers_Q4_1, numbers_Q5_0, numbers_Q5_1, numbers_Q8_0,
    numbers_IQ4_NL, numbers_MXFP4, numbers_Q4_K, numbers_Q5_K, numbers_Q6_K};

#if LANES == 16 || (defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD))
#define DIRECT 1                /* the processor adds four products of bytes to a sum of 32 bits */
#else
#define DIRECT 0
#endif

#if LANES != 8
/* sum + the products of each four bytes of w with those of a. */
INLINE ints dot(const int wide, ints sum, words w, words a)
{
#if LANES == 16
    if (wide) w ^= 0x80808080;  /* unsigned: 128 more */
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)a);
#elif DIRECT
    return (ints)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)a);
#else
    for (int i = 0; i < 4; i++)
        sum += ((ints)(w << (24 - 8 * i)) >> 24) * ((ints)(a << (24 - 8 * i)) >> 24);
    return sum;
#endif
}
#endif

/* Rows of x in int8, `together` by `together`: of each group the numbers of all rows, then for each row d, d times the
 * sum of a over the group and over each of its halves, and -128 times the sum over the group: AVX-512 multiplies
 * unsigned bytes, so that codes with a sign are 128 larger there, and a sum starts at that. */
struct rows { int8_t *a; float *d, *added; int *start; int groups, together; };

/* Memory for `count` rows, at d. Returns whether there is any. */
static int make_rows(struct rows *x, int count)
{
    size_t all = (size_t)((count + x->together - 1) / x->together) * x->together * x->groups;
    x->d = malloc(all * (GROUP + 20) + 1);
    x->added = x->d + all, x->start = (int *)(x->added + 3 * all), x->a = (int8_t *)(x->start + all);
    return x->d != NULL;
}

/* The place of the i-th row in d; its sums lie 3 times as far, and its numbers GROUP times. Tiles know `together`, so
 * that nothing is divided. */
INLINE ptrdiff_t place_of(const struct rows *x, const int together, int i, int g)
{
    return ((ptrdiff_t)(i / together) * x->groups + g) * together + i % together;
}

/* A vector of a group's sums, times the scales, added to the total of a row. */
INLINE vec scaled(const int wide, vec s, vec m, ints whole, vec d, vec added, vec total)
{
    vec value = fused_add(s * d, floats_of(whole), total);
    return wide ? value : fused_add(m, added, value);
}

#define COLUMNS (VECTORS < 2 ? 1 : 2) /* vectors of a tile */

#if LANES == 8
/* sum + the products of each two bytes of w, which are unsigned, with those of a, in 16 bits. As instructions: the
 * compiler copies sums between registers, and stores some. */
INLINE __m256i add_pairs(__m256i sum, words w, words a)
{
    __m256i pairs;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(pairs) : "x"(w), "x"(a));
    return sum;
}

/* sum + the products of each four bytes of w, which have signs, with those of a, in 32 bits. */
INLINE ints add_fours(ints sum, words w, words a)
{
    words part = (words)_mm256_abs_epi8((__m256i)w);
    __asm__("vpsignb %3, %4, %1\n\tvpmaddubsw %1, %2, %1\n\tvpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"
            : "+x"(sum), "=&x"(w) : "x"(part), "x"(w), "x"(a), "x"(_mm256_set1_epi16(1)));
    return sum;
}

/* The numbers of `rows` rows, which lie at a, d and added, times the codes of a group, of the vectors j to j + COLUMNS:
 * added to total [rows][WIDTH]. Codes lie as in a panel, or as codes_of writes them. */
INLINE void group_tile(const int kind, const int packed, const int rows, const uint8_t *codes, const float *s,
                       const float *m, const int8_t *a, const float *d, const float *added, const int j, float *total)
{
    const int wide = is_wide(kind), halves = kind == Q6_K ? 2 : 1, run = run_of(kind);
    UNROLL for (int half = 0; half < halves; half++) {
        ints whole[INT_ROWS][COLUMNS];
        __m256i part[INT_ROWS][COLUMNS];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int c = 0; c < COLUMNS; c++)
                whole[r][c] = (ints){0}, part[r][c] = (__m256i){0};
        UNROLL for (int n = half * QUADS / halves; n < (half + 1) * QUADS / halves; n++) {
            const int pairs = packed && halves == 1 && kind != Q8_0; /* a load of codes serves two quads at once */
            const int quad = pairs ? n / 2 + n % 2 * QUADS / 2 : n;
            words w[COLUMNS];
            UNROLL for (int c = 0; c < COLUMNS; c++) {
                words both[2];
                if (packed) pair_of(kind, codes, quad % (QUADS / 2), j + c, both, both + 1);
                else both[0] = both[1] = *(const words *)(codes + quad * WIDTH * 4 + (j + c) * 4 * LANES);
                w[c] = both[quad / (QUADS / 2)];
            }
            UNROLL for (int r = 0; r < rows; r++) {
                uint32_t four;
                memcpy(&four, a + r * GROUP + quad * 4, 4);
                UNROLL for (int c = 0; c < COLUMNS; c++) {
                    if (wide) whole[r][c] = add_fours(whole[r][c], w[c], (words){0} + four);
                    else if (n % run) part[r][c] = add_pairs(part[r][c], w[c], (words){0} + four);
                    else part[r][c] = _mm256_maddubs_epi16((__m256i)w[c], (__m256i)((words){0} + four));
                }
            }
            if (wide || n % run < run - 1) continue;
            UNROLL for (int r = 0; r < rows; r++)
                UNROLL for (int c = 0; c < COLUMNS; c++)
                    whole[r][c] += (ints)_mm256_madd_epi16(part[r][c], _mm256_set1_epi16(1));
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int c = 0; c < COLUMNS; c++) {
                const ptrdiff_t at = (j + c) * LANES, scale = half * WIDTH + at;
                vec *to = (vec *)(total + r * WIDTH + at);
                *to = scaled(wide, *(const vec *)(s + scale), *(const vec *)(m + scale), whole[r][c], spread(d[r]),
                             spread(added[r * 3 + (halves == 2) + half]), *to);
            }
        __asm__ volatile("" : : : "memory"); /* what is read early for the next sums would not fit the registers */
    }
}

/* The first `rows` rows of INT_ROWS from the i-th on, times `groups` groups, of which the first is x's `first`: added to
 * total [rows][WIDTH]. */
INLINE void int_tile(const int rows, const int kind, const uint8_t *codes, const float *s, const float *m, int groups,
                     const struct rows *x, int i, int first, float *total)
{
    const ptrdiff_t at = place_of(x, INT_ROWS, i, first);
    const int8_t *a = x->a + at * GROUP;
    const float *d = x->d + at, *added = x->added + at * 3;
    for (; groups > 0; groups--, codes += CODES, s += 2 * WIDTH, m += 2 * WIDTH) {
        UNROLL for (int j = 0; j < VECTORS; j += COLUMNS)
            group_tile(kind, 0, rows, codes, s, m, a, d, added, j, total);
        a += INT_ROWS * GROUP, d += INT_ROWS, added += INT_ROWS * 3;
    }
}
#else
/* The first `rows` rows of INT_ROWS from the i-th on, times `groups` groups, of which the first is x's `first`: added to
 * total [rows][WIDTH], which stays in registers meanwhile. */
INLINE void int_tile(const int rows, const int kind, const uint8_t *codes, const float *s, const float *m, int groups,
                     const struct rows *x, int i, int first, float *total)
{
    const int wide = is_wide(kind), halves = kind == Q6_K ? 2 : 1, each = QUADS / halves;
    UNROLL for (int from = 0; from < VECTORS; from += COLUMNS) {
        vec all[INT_ROWS][COLUMNS];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int j = 0; j < COLUMNS; j++)
                all[r][j] = *(const vec *)(total + r * WIDTH + (from + j) * LANES);
        for (int g = 0; g < groups; g++) {
            const ptrdiff_t at = place_of(x, INT_ROWS, i, first + g);
            const int8_t *a = x->a + at * GROUP;
            UNROLL for (int half = 0; half < halves; half++) {
                ints sum[INT_ROWS][COLUMNS];
                UNROLL for (int r = 0; r < rows; r++)
                    UNROLL for (int j = 0; j < COLUMNS; j++)
                        sum[r][j] = (ints){0} + (LANES == 16 && wide ? x->start[at + r] : 0);
                UNROLL for (int quad = half * each; quad < (half + 1) * each; quad++) {
                    words w[COLUMNS];
                    UNROLL for (int j = 0; j < COLUMNS; j++)
                        w[j] = *(const words *)(codes + g * CODES + quad * WIDTH * 4 + (from + j) * 4 * LANES);
                    UNROLL for (int j = 0; j < COLUMNS; j++)
                        KEPT(w[j]);
                    UNROLL for (int r = 0; r < rows; r++) {
                        uint32_t four;
                        memcpy(&four, a + r * GROUP + quad * 4, 4);
                        words one = (words){0} + four;
                        KEPT(one);
                        UNROLL for (int j = 0; j < COLUMNS; j++)
                            sum[r][j] = dot(wide, sum[r][j], w[j], one);
                    }
                }
                UNROLL for (int j = 0; j < COLUMNS; j++) {
                    const ptrdiff_t scale = (g * 2 + half) * WIDTH + (from + j) * LANES;
                    UNROLL for (int r = 0; r < rows; r++)
                        all[r][j] = scaled(wide, *(const vec *)(s + scale), *(const vec *)(m + scale), sum[r][j],
                                           spread(x->d[at + r]), spread(x->added[(at + r) * 3 + (halves == 2) + half]),
                                           all[r][j]);
                }
            }
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int j = 0; j < COLUMNS; j++)
                *(vec *)(total + r * WIDTH + (from + j) * LANES) = all[r][j];
    }
}
#endif

#if LANES == 8
#define FEW INT_ROWS
#define MOST_FEW(kind) 8        /* most rows that are: with more, it is faster to unpack the codes first */
#define SOME 48                 /* groups of all panels that rows go over together: they stay in a cache */

/* `rows` rows, of which the i-th is the first of INT_ROWS, times groups of `panels` panels from the first on, from the
 * packed codes: added to total [panels][count][WIDTH]. Of the memory `ahead` of these groups, fetches the part of this
 * turn: one for each INT_ROWS of `count` rows. */
INLINE void few_rows(const int kind, const int rows, const uint8_t *w, ptrdiff_t panel, int panels, const struct rows *x,
                     int i, int first, int groups, ptrdiff_t ahead, int turn, int count, float *total)
{
    const int bytes = bytes_of_group(kind), turns = (count + FEW - 1) / FEW;
    const int begin = bytes * turn / turns, end = bytes * (turn + 1) / turns;
    const ptrdiff_t at = place_of(x, INT_ROWS, i, first);
    const int8_t *a = x->a + at * GROUP;
    const float *d = x->d + at, *added = x->added + at * 3;
    for (int g = first; g < first + groups; g++) {
        for (int p = 0; p < panels; p++) {
            const uint8_t *codes = w + p * panel + start_of(kind, g) + bytes_of_scales(kind);
            float s[2 * WIDTH] __attribute__((aligned(64))), m[2 * WIDTH] __attribute__((aligned(64)));
            for (int line = begin; line < end; line += 64) __builtin_prefetch(codes + ahead + line, 0, 2);
            scales_of(kind, w + p * panel, g, s, m);
            if (rows > 2) __asm__ volatile("" : : "r"(s), "r"(m) : "memory"); /* scales would take registers of sums */
            UNROLL for (int j = 0; j < VECTORS; j += COLUMNS)
                group_tile(kind, 1, rows, codes, s, m, a, d, added, j, total + p * count * WIDTH);
        }
        a += INT_ROWS * GROUP, d += INT_ROWS, added += INT_ROWS * 3;
    }
}
#else
#if LANES == 16                 /* codes of some types are as fast to unpack again for each tile of rows */
#define FEW INT_ROWS
#define MOST_FEW(kind) ((kind) == MXFP4 || is_super(kind) ? 18 : INT_MAX)
#else
#define FEW 1
#define MOST_FEW(kind) 1
#endif
#define SOME x->groups

/* `rows` rows, of which the i-th is the first of INT_ROWS, and all groups, from the packed codes -> total
 * [rows][WIDTH]. */
INLINE void few_rows(const int kind, const int rows, const uint8_t *panel, ptrdiff_t size, int panels,
                     const struct rows *x, int i, int first, int groups, ptrdiff_t ahead, int turn, int count,
                     float *total)
{
    const int wide = is_wide(kind), halves = kind == Q6_K ? 2 : 1, apart = halves == 2 || rows < 3; /* more chains */
    vec all[FEW][VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int j = 0; j < VECTORS; j++)
            all[r][j] = (vec){0};
    for (int g = first; g < first + groups; g++) {
        const uint8_t *codes = panel + start_of(kind, g) + bytes_of_scales(kind);
        const ptrdiff_t at = place_of(x, INT_ROWS, i, g);
        const int8_t *a = x->a + at * GROUP;
        float s[2 * WIDTH] __attribute__((aligned(64))), m[2 * WIDTH] __attribute__((aligned(64)));
        for (int line = 0; line < FETCHED(kind, rows); line += 64) __builtin_prefetch(codes + AHEAD(rows) + line, 0, 2);
        scales_of(kind, panel, g, s, m);
        UNROLL for (int from = 0; from < VECTORS; from += COLUMNS) {
            ints sum[2][FEW][COLUMNS];
            UNROLL for (int r = 0; r < rows; r++)
                UNROLL for (int j = 0; j < COLUMNS; j++)
                    sum[0][r][j] = (ints){0} + (LANES == 16 && wide ? x->start[at + r] : 0), sum[1][r][j] = (ints){0};
            /* Codes of a byte each are read in the order in which they lie, and others in pairs. */
            UNROLL for (int n = 0; n < QUADS; n++) {
                const int half = kind == Q8_0 ? n / (QUADS / 2) : n % 2, quad = kind == Q8_0 ? n % (QUADS / 2) : n / 2;
                words w[2][COLUMNS];
                UNROLL for (int j = 0; j < COLUMNS; j++)
                    pair_of(kind, codes, quad, from + j, &w[0][j], &w[1][j]);
                UNROLL for (int r = 0; r < rows; r++) {
                    uint32_t four;
                    memcpy(&four, a + r * GROUP + (half * QUADS / 2 + quad) * 4, 4);
                    words one = (words){0} + four;
                    UNROLL for (int j = 0; j < COLUMNS; j++)
                        sum[apart ? half : 0][r][j] = dot(wide, sum[apart ? half : 0][r][j], w[half][j], one);
                }
            }
            UNROLL for (int half = 0; half < halves; half++)
                UNROLL for (int j = 0; j < COLUMNS; j++) {
                    const ptrdiff_t scale = half * WIDTH + (from + j) * LANES;
                    UNROLL for (int r = 0; r < rows; r++) {
                        ints whole = sum[half][r][j];
                        if (halves == 1) whole += sum[1][r][j];
                        all[r][from + j] =
                            scaled(wide, *(const vec *)(s + scale), *(const vec *)(m + scale), whole,
                                   spread(x->d[at + r]), spread(x->added[(at + r) * 3 + (halves == 2) + half]),
                                   all[r][from + j]);
                    }
                }
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int j = 0; j < VECTORS; j++)
            *(vec *)(total + r * WIDTH + j * LANES) = all[r][j];
}
#endif

#define FEW_ARGUMENTS                                                                                              \
    const uint8_t *w, ptrdiff_t panel, int panels, const struct rows *x, int i, int first, int groups,      \
        ptrdiff_t ahead, int turn, int count, float *total
#define FEW_ROWS(kind, n)                                                                                          \
    static void few_##kind##_##n(FEW_ARGUMENTS)                                                                    \
    {                                                                                                              \
        few_rows(kind, n, w, panel, panels, x, i, first, groups, ahead, turn, count, total);                       \
    }
#if LANES == 4
#define FEWS(kind) FEW_ROWS(kind, 1)
#define FEWS_OF(kind) {few_##kind##_1}
#elif LANES == 8
#define FEWS(kind) FEW_ROWS(kind, 1) FEW_ROWS(kind, 2) FEW_ROWS(kind, 3) FEW_ROWS(kind, 4)
#define FEWS_OF(kind) {few_##kind##_1, few_##kind##_2, few_##kind##_3, few_##kind##_4}
#else
#define FEWS(kind)                                                                                                 \
    FEW_ROWS(kind, 1) FEW_ROWS(kind, 2) FEW_ROWS(kind, 3) FEW_ROWS(kind, 4) FEW_ROWS(kind, 5) FEW_ROWS(kind, 6)
#define FEWS_OF(kind) {few_##kind##_1, few_##kind##_2, few_##kind##_3, few_##kind##_4, few_##kind##_5, few_##kind##_6}
#endif

FEWS(Q4_0) FEWS(Q4_1) FEWS(Q5_0) FEWS(Q5_1) FEWS(Q8_0) FEWS(IQ4_NL) FEWS(MXFP4) FEWS(Q4_K) FEWS(Q5_K) FEWS(Q6_K)

static void (*const FEW_OF[][FEW])(FEW_ARGUMENTS) = {
    FEWS_OF(Q4_0), FEWS_OF(Q4_1), FEWS_OF(Q5_0), FEWS_OF(Q5_1), FEWS_OF(Q8_0),
    FEWS_OF(IQ4_NL), FEWS_OF(MXFP4), FEWS_OF(Q4_K), FEWS_OF(Q5_K), FEWS_OF(Q6_K)};

#define ARGUMENTS                                                                                                  \
    const uint8_t *codes, const float *s, const float *m, int groups, const struct rows *x, int i, int first,      \
        float *total

#define INT_TILE(rows, kind)                                                                                       \
    static void int_tile_##rows##_##kind(ARGUMENTS)                                                                \
    {                                                                                                              \
        int_tile(rows, kind, codes, s, m, groups, x, i, first, total);                                             \
    }
#if INT_ROWS == 6
#define INT_TILES(kind)                                                                                            \
    INT_TILE(1, kind) INT_TILE(2, kind) INT_TILE(3, kind) INT_TILE(4, kind) INT_TILE(5, kind) INT_TILE(6, kind)
#define OF(kind)                                                                                                   \
    {int_tile_1_##kind, int_tile_2_##kind, int_tile_3_##kind, int_tile_4_##kind, int_tile_5_##kind, int_tile_6_##kind}
#else
#define INT_TILES(kind) INT_TILE(1, kind) INT_TILE(2, kind) INT_TILE(3, kind) INT_TILE(4, kind)
#define OF(kind) {int_tile_1_##kind, int_tile_2_##kind, int_tile_3_##kind, int_tile_4_##kind}
#endif

INT_TILES(Q4_1) INT_TILES(Q6_K) INT_TILES(Q8_0)
#if LANES == 8
INT_TILES(Q5_1)
#endif

/* For unpacked codes: types of one such tile differ only in how they are unpacked. */
static void (*const *int_tiles(int kind))(ARGUMENTS)
{
    static void (*const plain[])(ARGUMENTS) = OF(Q4_1), (*const halves[])(ARGUMENTS) = OF(Q6_K),
                (*const wide[])(ARGUMENTS) = OF(Q8_0);
#if LANES == 8
    static void (*const five[])(ARGUMENTS) = OF(Q5_1);
    if (run_of(kind) == 4) return five;
#endif
    return is_wide(kind) ? wide : kind == Q6_K ? halves : plain;
}

#if MATRICES
/* Whether Linux lets this process use the registers of matrices. */
static int has_matrices(void)
{
    static int known = -1;
    if (known < 0) known = syscall(SYS_arch_prctl, 0x1023, 18) == 0;    /* ARCH_REQ_XCOMP_PERM, XTILEDATA */
    return known;
}

/* Matrices 0 to 3 have sums [16, 16], 4 and 5 numbers of x [16, GROUP], 6 and 7 codes [GROUP / 4, 16, 4]. */
static void open_matrices(void)
{
    struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) shapes.bytes[i] = i / 2 == 2 ? GROUP : 64, shapes.rows[i] = i < 6 ? 16 : GROUP / 4;
    __asm__ volatile("" : : "r"(&shapes) : "memory");   /* GCC does not know that all of it is read */
    _tile_loadconfig(&shapes);
}

#define MULTIPLY(sums, x, w)                                                                                       \
    if (wide) _tile_dpbssd(sums, x, w);                                                                            \
    else _tile_dpbsud(sums, x, w);

/* Sums of MATRIX_ROWS rows and a panel over two groups, of which the second lies `next` groups on: whole
 * [2][2][MATRIX_ROWS][16]. */
INLINE void multiply(const int wide, const uint8_t *codes, const int8_t *a, int next, int *whole)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, a, GROUP);
    _tile_loadd(6, codes, WIDTH * 4);
    _tile_loadd(7, codes + 64, WIDTH * 4);
    MULTIPLY(0, 4, 6)
    MULTIPLY(1, 4, 7)
    _tile_loadd(5, a + next * MATRIX_ROWS * GROUP, GROUP);
    _tile_loadd(6, codes + next * CODES, WIDTH * 4);
    _tile_loadd(7, codes + next * CODES + 64, WIDTH * 4);
    MULTIPLY(2, 5, 6)
    MULTIPLY(3, 5, 7)
    _tile_stored(0, whole, 4 * LANES);
    _tile_stored(1, whole + MATRIX_ROWS * LANES, 4 * LANES);
    _tile_stored(2, whole + 2 * MATRIX_ROWS * LANES, 4 * LANES);
    _tile_stored(3, whole + 3 * MATRIX_ROWS * LANES, 4 * LANES);
}

/* `rows` rows of MATRIX_ROWS, times groups of a panel, MOST at most: added to total [rows][WIDTH]. */
INLINE void matrix_tile(const int rows, const int wide, const uint8_t *codes, const float *s, const float *m,
                        int groups, const int8_t *a, const float *d, const float *added, float *total)
{
    int whole[MOST][2][MATRIX_ROWS * LANES] __attribute__((aligned(64)));
    for (int g = 0; g < groups; g += 2)
        multiply(wide, codes + g * CODES, a + g * MATRIX_ROWS * GROUP, g + 1 < groups, whole[g][0]);
    for (int j = 0; j < WIDTH; j += LANES) {
        vec sum[MATRIX_ROWS];
        UNROLL for (int r = 0; r < rows; r++) sum[r] = *(const vec *)(total + r * WIDTH + j);
        for (int g = 0; g < groups; g++)
            UNROLL for (int r = 0; r < rows; r++) {
                ints own = *(const ints *)(whole[g][j / LANES] + r * LANES);
                ptrdiff_t at = g * MATRIX_ROWS + r, scale = g * 2 * WIDTH + j;
                sum[r] = scaled(wide, *(const vec *)(s + scale), *(const vec *)(m + scale), own, spread(d[at]),
                                spread(added[3 * at]), sum[r]);
            }
        UNROLL for (int r = 0; r < rows; r++) *(vec *)(total + r * WIDTH + j) = sum[r];
    }
}

#define MATRIX_ARGUMENTS                                                                                           \
    const uint8_t *codes, const float *s, const float *m, int groups, const int8_t *a, const float *d,             \
        const float *added, float *total
#define MATRIX_TILE(rows, name, wide)                                                                              \
    static void matrix_tile_##rows##_##name(MATRIX_ARGUMENTS)                                                      \
    {                                                                                                              \
        matrix_tile(rows, wide, codes, s, m, groups, a, d, added, total);                                          \
    }
#define MATRIX_TILES(name, wide)                                                                                   \
    MATRIX_TILE(4, name, wide) MATRIX_TILE(8, name, wide) MATRIX_TILE(12, name, wide) MATRIX_TILE(16, name, wide)

MATRIX_TILES(plain, 0) MATRIX_TILES(wide, 1)

static void (*const MATRIX_TILES_OF[2][MATRIX_ROWS / 4])(MATRIX_ARGUMENTS) = {
    {matrix_tile_4_plain, matrix_tile_8_plain, matrix_tile_12_plain, matrix_tile_16_plain},
    {matrix_tile_4_wide, matrix_tile_8_wide, matrix_tile_12_wide, matrix_tile_16_wide}};

#endif

/* Fetches WIDTH numbers of the rows `first` to `last` at `out`, which lie `step` bytes apart, to be written. */
INLINE void fetch_out(char *out, ptrdiff_t step, int first, int last)
{
    for (int r = first; r < last; r++)
        for (int line = 0; line < 4 * WIDTH; line += 64) __builtin_prefetch(out + r * step + line, 1, 3);
}

/* Rows of x, `count` from the i-th on, times `panels` panels of w -> total [panels][count][WIDTH], and numbers of no
 * meaning up to the next multiple of 4 rows. The memory at `out`, whose rows lie `step` bytes apart, is fetched to be
 * written. */
static void rounded_part(int kind, int few, const uint8_t *w, ptrdiff_t panel, int panels, const struct rows *x, int i,
                         int count, float *total, char *out, ptrdiff_t step)
{
    uint8_t codes[MOST * CODES] __attribute__((aligned(64)));
    float s[MOST * 2 * WIDTH] __attribute__((aligned(64))), m[MOST * 2 * WIDTH] __attribute__((aligned(64)));
    void (*const *tiles)(ARGUMENTS) = int_tiles(kind);
    if (!few || LANES == 8) memset(total, 0, sizeof(float) * (panels * count + 3) * WIDTH);
    for (int first = 0; few && first < x->groups; first += SOME) {
        int groups = least(SOME, x->groups - first);
        ptrdiff_t here = start_of(kind, first), next = start_of(kind, first + groups) - here;
        if (first + groups == x->groups) next = panels * panel + start_of(kind, 0) - here;
        for (int from = 0; from < count; from += FEW) {
            if (count > 8) fetch_out(out, step, from, least(from + FEW, count));
            FEW_OF[kind][least(FEW, count - from) - 1](w, panel, panels, x, i + from, first, groups, next, from / FEW,
                                                       count, total + from * WIDTH);
        }
    }
    for (int first = 0; !few && first < x->groups; first += MOST) {
        int groups = least(MOST, x->groups - first);
        UNPACKS[kind](w, first, groups, codes, s, m);
        if (count > 8) fetch_out(out, step, first * count / x->groups, (first + groups) * count / x->groups);
        for (int from = 0; from < count; from += x->together) {
            int rows = least(x->together, count - from);
#if MATRICES
            ptrdiff_t at = place_of(x, MATRIX_ROWS, i + from, first);
            if (x->together == MATRIX_ROWS)
                MATRIX_TILES_OF[is_wide(kind)][(rows - 1) / 4](codes, s, m, groups, x->a + at * GROUP, x->d + at,
                                                               x->added + at * 3, total + from * WIDTH);
            else
#endif
            tiles[rows - 1](codes, s, m, groups, x, i + from, first, total + from * WIDTH);
        }
    }
}

#define DENSE                                                                                                      \
    const float *w, const float *s, const float *m, int groups, const float *x, ptrdiff_t step, const float *sums, \
        ptrdiff_t apart, float *total
#define TILE(n)                                                                                                    \
    case n: dense_tile(n, halves, minima, w, s, m, groups, x, step, sums, apart, total); break;

INLINE void dense_tiles(const int halves, const int minima, int rows, DENSE)
{
    switch (rows) {
        TILE(1) TILE(2) TILE(3)
#if FLOAT_ROWS >= 6
        TILE(4) TILE(5) TILE(6)
#endif
#if FLOAT_ROWS == 8
        TILE(7) TILE(8)
#endif
    }
}

#define DENSE_TILES(name, halves, minima)                                                                          \
    static void name(int rows, DENSE)                                                                              \
    {                                                                                                              \
        dense_tiles(halves, minima, rows, w, s, m, groups, x, step, sums, apart, total);                           \
    }
DENSE_TILES(dense_plain, 1, 0) DENSE_TILES(dense_with_minima, 1, 1) DENSE_TILES(dense_halves, 2, 0)

/* Rows x [count, step] times `some` panels of `groups` groups -> total [some][count][WIDTH]; many rows take one. */
static void float_part(int kind, const uint8_t *panel, ptrdiff_t size, int some, int groups, const float *x,
                       ptrdiff_t step, const float *sums, int count, float *total)
{
    if (count <= FEW_FLOAT) {
        const uint8_t *w[BESIDE(1)]; /* past the last, it is read again */
        const int rows = count <= MOST_FLOAT ? count : (count + 1) / 2;
        for (int p = 0; p < BESIDE(rows); p++) w[p] = panel + least(p, some - 1) * size;
        for (int i = 0; i < count; i += rows)
            FLOATS_BY[kind][least(rows, count - i) - 1](w, groups, x + i * step, step, sums ? sums + i * groups : NULL,
                                                        total + i * WIDTH);
        return;
    }
    float s[MOST * 2 * WIDTH] __attribute__((aligned(64))), m[MOST * 2 * WIDTH] __attribute__((aligned(64)));
    float w[MOST * GROUP * WIDTH] __attribute__((aligned(64)));
    void (*tiles)(int, DENSE) = kind == Q6_K ? dense_halves : has_minimum(kind) ? dense_with_minima : dense_plain;
    memset(total, 0, sizeof(float) * count * WIDTH);
    for (int g = 0, each = groups_at_once(groups); g < groups; g += each) {
        int together = least(each, groups - g);
        NUMBERS_BY[kind](panel, g, together, w, s, m);
        for (int i = 0; i < count; i += FLOAT_ROWS)
            tiles(least(FLOAT_ROWS, count - i), w, s, m, together, x + i * step + g * GROUP, step,
                  has_minimum(kind) ? sums + (ptrdiff_t)i * groups + g : NULL, groups, total + i * WIDTH);
    }
}

/* The i-th row, one of `whole` rows or of the rest, from x [length], with the sums that this kind of codes reads; d is
 * no number where one of x is none, or infinite. */
static void round_row(const int kind, const float *x, const struct rows *rows, int whole, const struct rows *rest,
                      int i)
{
    if (i >= whole) rows = rest, i -= whole;
    const int together = rows->together, groups = rows->groups;
    ptrdiff_t at = place_of(rows, together, i, 0);
    int8_t *a = rows->a;
    float *d = rows->d, *added = rows->added;
    int *start = rows->start;
    for (int g = 0; g < groups; g++, x += GROUP, at += together) {
        ints most = {0}, all[2] = {{0}, {0}}; /* of |x|: numbers are ordered as their bits, NaN last */
        UNROLL for (int k = 0; k < GROUP; k += LANES) most = larger_whole(most, *(const ints *)(x + k) & 0x7fffffff);
        union { int bits; float number; } top = {largest_whole_of(most)};
        const int finite = top.bits < 0x7f800000;
        const float by = finite && top.bits ? 127 / top.number : 0;
        UNROLL for (int k = 0; k < GROUP; k += LANES) {
            ints whole = whole_of(*(const vec *)(x + k) * by);
            *(bytes *)(a + at * GROUP + k) = as_bytes(whole);
            all[k / (GROUP / 2)] += whole;
        }
        int sum[2];
        whole_sums_of(all[0], all[1], sum);
        float scale = finite ? top.number / 127 : NAN;
        d[at] = scale;
        added[at * 3] = scale * (sum[0] + sum[1]);
        if (kind == Q6_K) added[at * 3 + 1] = scale * sum[0], added[at * 3 + 2] = scale * sum[1];
        if (is_wide(kind)) start[at] = -128 * (sum[0] + sum[1]);
    }
}

/* Rows of sums [count][WIDTH], of which the first `last` numbers exist, plus `base` or NULL -> out. */
INLINE void finish(const int type, const int out_type, const int last, int count, const float *sums, const void *base,
                   ptrdiff_t base_step, void *out, ptrdiff_t out_step)
{
    for (ptrdiff_t i = 0; i < count; i++)
        UNROLL for (int n = 0; n < WIDTH; n += LANES)
            if (n < last) {
                vec value = *(const vec *)(sums + i * WIDTH + n);
                if (base) value += load(type, base, i * base_step + n, last - n);
                store(out_type, out, i * out_step + n, last - n, value);
            }
}

/* A matmul: see `pardec_blocks`. */
struct call {
    int kind, rounded, type, out_type, count, columns, most; /* most: panels at once */
    const float *numbers, *sums; /* x, where it is not rounded, and its sums over each group, or NULL */
    const struct rows *rows, *rest; /* x where it is rounded: `whole` rows, and those after them */
    int whole;
    const uint8_t *w;
    const void *base;
    void *out;
    ptrdiff_t step, panel, base_step, out_step;
};

/* The panels from number `first` on, before `last`. */
static void some_panels(const struct call *by, int first, int last)
{
    const int type = by->type, out_type = by->out_type;
    float total[(ROWS + 3) * WIDTH] __attribute__((aligned(64)));
#if MATRICES
    if (by->rows->together == MATRIX_ROWS) open_matrices();
#endif
    for (; first < last; first += by->most)
        for (int from = 0, together; from < by->count; from += together) {
            const int before = from < by->whole, some = least(by->most, last - first);
            const struct rows *rows = before ? by->rows : by->rest;
            together = least(ROWS, (before ? by->whole : by->count) - from);
            int few = by->rounded && rows->together == INT_ROWS && together <= MOST_FEW(by->kind);
            if (few && LANES == 16) together = least(together, 2 * INT_ROWS); /* their sums stay in the nearest cache */
            char *to = past(out_type, by->out, from * by->out_step + (ptrdiff_t)first * WIDTH);
            ptrdiff_t apart = by->out_step * bytes_of(out_type);
            const uint8_t *w = by->w + first * by->panel;
            if (by->rounded)
                rounded_part(by->kind, few, w, by->panel, some, rows, before ? from : from - by->whole, together, total,
                             to, apart);
            else
                float_part(by->kind, w, by->panel, some, by->rows->groups, by->numbers + from * by->step, by->step,
                           by->sums ? by->sums + (ptrdiff_t)from * by->rows->groups : NULL, together, total);
            for (int p = first; p < first + some; p++) {
                const float *sums = total + (ptrdiff_t)(p - first) * together * WIDTH;
                const void *onto =
                    by->base ? past(type, by->base, from * by->base_step + (ptrdiff_t)p * WIDTH) : NULL;
                void *put = past(out_type, by->out, from * by->out_step + (ptrdiff_t)p * WIDTH);
                int width = least(WIDTH, by->columns - p * WIDTH);
                if (type == FLOAT32 && out_type == FLOAT32 && width == WIDTH)
                    finish(FLOAT32, FLOAT32, WIDTH, together, sums, onto, by->base_step, put, by->out_step);
                else finish(type, out_type, width, together, sums, onto, by->base_step, put, by->out_step);
            }
        }
#if MATRICES
    if (by->rows->together == MATRIX_ROWS) _tile_release();
#endif
}

/* x [count, length] of rows `step` apart times panels of `columns` rows, plus `base` (NULL: none; its rows lie
 * `base_step` apart, 0 where all are one) -> out [count, columns], rows `out_step` apart. x and base are of `type`, out
 * is of `out_type`; `rounded`: x is rounded to int8. Returns 0, or 1 where there is no memory. */
int pardec_blocks(int kind, int rounded, int type, const void *x, ptrdiff_t step, const uint8_t *w, const void *base,
                  ptrdiff_t base_step, int out_type, void *out, ptrdiff_t out_step, int count, int columns, int length,
                  int threads)
{
    int groups = length / GROUP, panels = (columns + WIDTH - 1) / WIDTH;
    ptrdiff_t panel = start_of(kind, groups) - (is_super(kind) ? bytes_of_head(kind) : 0);
    float *copy = NULL;
    const float *numbers = (const float *)x;
    float *sums = NULL;
    struct rows rows = {NULL, NULL, NULL, NULL, groups, INT_ROWS}, rest = rows;
    int whole = count;
    if (type != FLOAT32) {
        copy = malloc(sizeof(float) * count * length + 1);
        if (!copy) return 1;
        for (ptrdiff_t i = 0; i < count; i++)
            for (int k = 0; k < length; k += LANES)
                store(FLOAT32, copy, i * length + k, LANES, load(type, x, i * step + k, LANES));
        numbers = copy, step = length;
    }
    if (rounded) {
#if MATRICES
        if (count >= MATRIX_LEAST && kind != Q6_K && has_matrices()) {
            rows.together = MATRIX_ROWS;
            if (count % MATRIX_ROWS < MATRIX_REST) whole -= count % MATRIX_ROWS;
        }
#endif
        if (!make_rows(&rows, whole) || (whole < count && !make_rows(&rest, count - whole))) {
            free(rows.d), free(copy);
            return 1;
        }
        if (threads > 1 && count > 7) {
#pragma omp parallel for num_threads(threads) schedule(static)
            for (int i = 0; i < count; i++) round_row(kind, numbers + i * step, &rows, whole, &rest, i);
        } else
            for (int i = 0; i < count; i++) round_row(kind, numbers + i * step, &rows, whole, &rest, i);
    } else if (has_minimum(kind)) {
        sums = malloc(sizeof(float) * count * groups + 1);
        if (!sums) {
            free(copy);
            return 1;
        }
        for (ptrdiff_t i = 0; i < count; i++)
            for (int g = 0; g < groups; g++) {
                vec sum = {0};
                for (int k = 0; k < GROUP; k += LANES) sum += *(const vec *)(numbers + i * step + g * GROUP + k);
                sums[i * groups + g] = sum_of(sum);
            }
    }
    int beside = rounded ? (count <= MOST_FEW(kind) ? STREAMS : 1) : count <= FEW_FLOAT ? BESIDE(count) : 1;
    int most = least(beside, (panels + threads - 1) / threads);
    int turns = (panels + most - 1) / most;
    struct call call = {kind,     rounded, type,    out_type, count, columns, most,  numbers, sums,
                        &rows,    &rest,   whole,   w,        base,  out,     step,  panel,   base_step, out_step};
    if (threads > 1) { /* one thread does not ask OpenMP, which takes a microsecond */
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int part = 0; part < threads; part++)
            some_panels(&call, (int)((ptrdiff_t)turns * part / threads) * most,
                        least(panels, (int)((ptrdiff_t)turns * (part + 1) / threads) * most));
    } else some_panels(&call, 0, panels);
    free(copy), free(rows.d), free(rest.d), free(sums);
    return 0;
}

/* The dequantized rows `index` [count] of panels with `length` columns -> out [count, length]. */
int pardec_block_rows(int kind, const uint8_t *w, const int64_t *index, int count, int length, float *out)
{
    int groups = length / GROUP, wide = is_wide(kind);
    ptrdiff_t panel = start_of(kind, groups) - (is_super(kind) ? bytes_of_head(kind) : 0);
    uint8_t codes[MOST * CODES] __attribute__((aligned(64)));
    float s[MOST * 2 * WIDTH] __attribute__((aligned(64))), m[MOST * 2 * WIDTH] __attribute__((aligned(64)));
    for (int i = 0; i < count; i++) {
        int lane = index[i] % WIDTH;
        for (int g = 0; g < groups; g += MOST) {
            int some = least(MOST, groups - g);
            UNPACKS[kind](w + index[i] / WIDTH * panel, g, some, codes, s, m);
            for (int k = 0; k < some * GROUP; k++, out++) {
                uint8_t code = codes[(k / 4 * WIDTH + lane) * 4 + k % 4];
                ptrdiff_t at = k / GROUP * 2 * WIDTH + (kind == Q6_K && k % GROUP >= GROUP / 2 ? WIDTH : 0) + lane;
                *out = fmaf(wide ? (int8_t)code : code, s[at], m[at]);
            }
        }
    }
    return 0;
}
