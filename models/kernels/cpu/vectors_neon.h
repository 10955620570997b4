/* The operations of vectors.h by NEON of 64-bit ARM: 4 lanes. Comments that vectors_avx512.h has are not repeated. */

#include <arm_neon.h>

INLINE vec spread(float x) { return (vec)vdupq_n_f32(x); }

INLINE vec larger(vec a, vec b)
{
    return (vec)vbslq_f32(vcgtq_f32((float32x4_t)a, (float32x4_t)b), (float32x4_t)a, (float32x4_t)b);
}

INLINE vec fused_add(vec a, vec b, vec c) { return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
INLINE vec fused_subtract(vec a, vec b, vec c) { return fused_add(a, b, -c); }

INLINE float sum_of(vec x)
{
    float32x2_t two = vadd_f32(vget_low_f32((float32x4_t)x), vget_high_f32((float32x4_t)x));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
INLINE float largest_of(vec x) { return vmaxnmvq_f32((float32x4_t)x); }
INLINE int whole_sum_of(ints x) { return vaddvq_s32((int32x4_t)x); }

INLINE ints larger_whole(ints a, ints b) { return (ints)vmaxq_s32((int32x4_t)a, (int32x4_t)b); }
INLINE int largest_whole_of(ints x) { return vmaxvq_s32((int32x4_t)x); }

INLINE void whole_sums_of(ints a, ints b, int sums[2]) { sums[0] = whole_sum_of(a), sums[1] = whole_sum_of(b); }

INLINE unsigned bits_of(uint32x4_t where)
{
    static const uint32_t BIT[LANES] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(where, vld1q_u32(BIT)));
}
INLINE unsigned where_equal(vec a, vec b) { return bits_of(vceqq_f32((float32x4_t)a, (float32x4_t)b)); }
INLINE unsigned where_above(vec a, vec b) { return bits_of(vcgtq_f32((float32x4_t)a, (float32x4_t)b)); }

INLINE vec floats_of(ints x) { return (vec)vcvtq_f32_s32((int32x4_t)x); }
INLINE ints whole_of(vec x) { return (ints)vcvtnq_s32_f32((float32x4_t)x); }

INLINE bytes as_bytes(ints x) { return __builtin_convertvector(x, bytes); }

INLINE vec widened(uint16x4_t x) { return (vec)vshll_n_u16(x, 16); }

INLINE uint16x4_t narrowed(vec x)
{
    uint32x4_t bits = (uint32x4_t)x, odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    uint32x4_t number = vceqq_f32((float32x4_t)x, (float32x4_t)x);
    return vshrn_n_u32(vbslq_u32(number, up, vdupq_n_u32(0x7fc00000)), 16);
}

INLINE vec load_floats(const void *from) { return *(const vec *)from; }
INLINE vec load_halves(const void *from) { return widened(vld1_u16(from)); }
INLINE void store_halves(void *to, vec x) { vst1_u16(to, narrowed(x)); }

INLINE vec load_some_floats(const void *from, ptrdiff_t left)
{
    float held[LANES] = {0};
    for (ptrdiff_t n = 0; n < left; n++) held[n] = ((const float *)from)[n];
    return load_floats(held);
}
INLINE vec load_some_halves(const void *from, ptrdiff_t left)
{
    uint16_t held[LANES] = {0};
    for (ptrdiff_t n = 0; n < left; n++) held[n] = ((const half *)from)[n];
    return load_halves(held);
}
INLINE void store_some_floats(void *to, ptrdiff_t left, vec x)
{
    for (ptrdiff_t n = 0; n < left; n++) ((float *)to)[n] = x[n];
}
INLINE void store_some_halves(void *to, ptrdiff_t left, vec x)
{
    uint16_t held[LANES];
    store_halves(held, x);
    for (ptrdiff_t n = 0; n < left; n++) ((half *)to)[n] = held[n];
}

INLINE void transpose(vec x[LANES])
{
    float32x4x2_t first = vtrnq_f32((float32x4_t)x[0], (float32x4_t)x[1]);
    float32x4x2_t second = vtrnq_f32((float32x4_t)x[2], (float32x4_t)x[3]);
    UNROLL for (int i = 0; i < 2; i++) {
        x[i] = (vec)vcombine_f32(vget_low_f32(first.val[i]), vget_low_f32(second.val[i]));
        x[2 + i] = (vec)vcombine_f32(vget_high_f32(first.val[i]), vget_high_f32(second.val[i]));
    }
}
