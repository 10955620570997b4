/* AVX-512 for processors without it, by SIMDe (github.com/simd-everywhere/simde): included before a kernel. */

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#include <immintrin.h>

#define LANES 16

/* Missing in SIMDe 0.7. */
typedef float simde_floats __attribute__((vector_size(64)));
typedef int simde_ints __attribute__((vector_size(64)));
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(x) ((__m512)__builtin_convertvector((simde_ints)(x), simde_floats))
