/* Successive layers of a decoder as one call of the kernels in C: what lies between two kernels when PyTorch calls
 * them, tensors and views and the choice of a version, takes as long as a small one.
 *
 *     h += out(attention(norm(h))); h += down(silu(gate(n)) * up(n)), n = norm(h)
 *
 * Each kernel is the function that PyTorch's call would run, so that the result has the same bits.
 */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PART 288                /* rows for each thread: whole tiles of all kernels */

enum { BLOCKS, PANELS, INT8 };  /* layouts of a matrix: those of blocks.c, panels.c and int8.c */

/* The functions of other libraries: layers.py lists them in this order. */
typedef struct {
    int (*blocks)(int, int, int, const void *, ptrdiff_t, const void *, const void *, ptrdiff_t, int, void *, ptrdiff_t,
                  int, int, int, int);
    int (*panels)(const void *, ptrdiff_t, const void *, ptrdiff_t, int, const void *, ptrdiff_t, void *, int, int, int,
                  int);
    int (*int8)(int, const void *, ptrdiff_t, const void *, const float *, const void *, ptrdiff_t, int, void *,
                ptrdiff_t, int, int, int, int);
    int (*norm)(const void *, const void *, void *, int, int, int, float);
    int (*gate)(const void *, void *, int, int, int);
    int (*turn)(int, const void *, ptrdiff_t, const float *, const float *, ptrdiff_t, void *, void *, void *,
                const ptrdiff_t *, int, int, int, int, int, int);
    int (*attend)(int, const void *, const void *, const void *, void *, const float *, float *, const ptrdiff_t *,
                  const int64_t *, int, int, int, int, int, int, int, int, int);
} Kernels;

/* Rows of a matrix that are of one type; `kind` is that of blocks.c or panels.c, `scale` that of int8.c, and `apart`
 * that of panels.c. */
typedef struct { const void *weights; const float *scale; ptrdiff_t apart; int kind, rows; } Section;

/* A matrix [rows, length], and what is added to each row of its product, or NULL. */
typedef struct { const Section *sections; const void *bias; int count, layout, rounded, rows, length; } Matrix;

/* The norms of queries and keys may be NULL, and that of attention, whose inputs are then given. */
typedef struct {
    const void *attention_norm, *mlp_norm, *q_norm, *k_norm;
    Matrix qkv, out, gate_up, down;
    float epsilon;
    int heads, kv_heads, dim;
} Layer;

/* A forward of `queries` queries in each row, of which `wanted` go on after attention: those `picked`, or the last. */
typedef struct {
    const Kernels *run;
    int type, batch, queries, wanted, turned;
    const float *cosine, *sine; /* [queries, turned] each, rows `apart` numbers apart */
    ptrdiff_t apart;
    void *const *k, *const *v;  /* the cache of each layer; NULL: there is none */
    ptrdiff_t steps[6];         /* strides of row, slot and head of k, then of v */
    int first, slots;           /* where the queries' keys and values go; slots that are read */
    const float *mask;          /* [batch, wanted, last] of the last slots that are read; NULL: all are seen */
    ptrdiff_t mask_steps[2];
    int last, causal;           /* causal: each query sees the queries up to itself, which are all the slots */
    const int64_t *picked;      /* [batch, wanted] */
    const int64_t *ends;        /* [batch] slots that each row reads; NULL: all */
    int threads;
    ptrdiff_t spread;           /* multiplications from which on several threads are faster */
} Forward;

/* Rows that go through an MLP together: what lies between its matrices stays in a cache, and takes little memory. */
static int together(const Forward *one) { return PART * one->threads; }

static int threads_for(const Forward *one, ptrdiff_t work) { return work >= one->spread ? one->threads : 1; }

static void *past(const Forward *one, const void *x, ptrdiff_t n) { return (char *)x + n * (one->type ? 2 : 4); }

/* x [count, length] @ w.T + base [count, rows] (NULL: the bias) -> out. */
static int multiply(const Forward *one, const Matrix *w, const void *x, int count, const void *base, void *out)
{
    ptrdiff_t apart = base ? w->rows : 0, done = 0;
    if (!base) base = w->bias;
    for (const Section *part = w->sections; part < w->sections + w->count; done += part->rows, part++) {
        int threads = threads_for(one, (ptrdiff_t)count * part->rows * w->length), failed;
        const void *onto = base ? past(one, base, done) : NULL;
        void *to = past(one, out, done);
        if (w->layout == BLOCKS)
            failed = one->run->blocks(part->kind, w->rounded, one->type, x, w->length, part->weights, onto, apart,
                                      one->type, to, w->rows, count, part->rows, w->length, threads);
        else if (w->layout == PANELS)
            failed = one->run->panels(x, w->length, part->weights, part->apart, part->kind, onto, apart, to, count,
                                      part->rows, w->length, threads);
        else
            failed = one->run->int8(one->type, x, w->length, part->weights, part->scale, onto, apart, one->type, to,
                                    w->rows, count, part->rows, w->length, threads);
        if (failed) return 1;
    }
    return 0;
}

/* Attention of q [batch, wanted, heads, dim] over k and v, whose strides are `steps` -> out, like q. */
static int attention(const Forward *one, const Layer *layer, const void *q, const void *k, const void *v,
                     const ptrdiff_t *steps, void *out)
{
    ptrdiff_t own = (ptrdiff_t)layer->heads * layer->dim;
    ptrdiff_t all[14] = {one->wanted * own, own, layer->dim, steps[0], steps[1], steps[2], steps[3], steps[4], steps[5],
                         one->wanted * own, own, layer->dim, one->mask_steps[0], one->mask_steps[1]};
    return one->run->attend(one->type, q, k, v, out, one->mask, NULL, all, one->ends, one->batch, one->wanted,
                            layer->heads, layer->kv_heads, one->slots, one->last, layer->dim, one->causal,
                            threads_for(one, 2 * one->batch * one->wanted * own * one->slots));
}

/* The rows of x [batch, queries, width] that are picked -> out [batch, wanted, width]. */
static const void *picked_of(const Forward *one, const void *x, ptrdiff_t width, void *out)
{
    for (int n = 0; n < one->batch * one->wanted; n++) {
        ptrdiff_t row = n / one->wanted * one->queries + one->picked[n];
        memcpy(past(one, out, n * width), past(one, x, row * width), width * (one->type ? 2 : 4));
    }
    return out;
}

/* The states `to` [N, E] after a layer, N = batch * wanted, of states `from`: [batch * queries, E] where queries are
 * picked, else [N, E]. `inputs` [batch * queries, I] are those of attention, or NULL. */
static int layer_of(const Forward *one, const Layer *layer, int index, const void *from, const void *inputs, void *to,
                    void *room)
{
    int rows = one->batch * one->queries, count = one->batch * one->wanted, type = one->type;
    int heads = layer->heads, kv = layer->kv_heads, dim = layer->dim;
    int width = layer->out.rows, inner = layer->down.length;
    ptrdiff_t own = (ptrdiff_t)heads * dim, fused = own + 2 * (ptrdiff_t)kv * dim;
    void *attended = room, *normed = past(one, attended, (ptrdiff_t)count * width);
    void *qkv = past(one, normed, (ptrdiff_t)rows * width), *both = qkv; /* the MLP begins when attention is done */
    void *q = past(one, qkv, rows * fused), *keys = past(one, q, rows * own);
    void *read = past(one, keys, rows * (ptrdiff_t)kv * dim), *some = past(one, read, count * own);
    if (!inputs) {
        one->run->norm(from, layer->attention_norm, normed, type, rows, width, layer->epsilon);
        inputs = normed;
    }
    if (multiply(one, &layer->qkv, inputs, rows, NULL, qkv)) return 1;
    for (int n = 0; layer->q_norm && n < rows; n++) {
        void *at = past(one, qkv, n * fused), *after = past(one, at, own);
        one->run->norm(at, layer->q_norm, at, type, heads, dim, layer->epsilon);
        one->run->norm(after, layer->k_norm, after, type, kv, dim, layer->epsilon);
    }
    ptrdiff_t apart = (ptrdiff_t)kv * dim;
    ptrdiff_t alone[6] = {one->queries * apart, apart, dim, one->queries * fused, fused, dim};
    const ptrdiff_t *steps = one->k ? one->steps : alone;
    const void *k = one->k ? one->k[index] : keys, *v = one->k ? one->v[index] : past(one, qkv, own + apart);
    one->run->turn(type, qkv, fused, one->cosine, one->sine, one->apart, q, past(one, k, one->first * steps[1]),
                   one->k ? past(one, v, one->first * steps[4]) : NULL, steps, one->batch, one->queries, heads, kv, dim,
                   one->turned);
    const void *asking = one->picked ? picked_of(one, q, own, some) : past(one, q, (rows - count) * own);
    if (attention(one, layer, asking, k, v, steps, read)) return 1;
    if (one->picked) from = picked_of(one, from, width, past(one, some, count * own));
    if (multiply(one, &layer->out, read, count, from, attended)) return 1;
    for (int start = 0, some = together(one); start < count; start += some) {
        int part = count - start < some ? count - start : some;
        const void *residual = past(one, attended, (ptrdiff_t)start * width);
        one->run->norm(residual, layer->mlp_norm, normed, type, part, width, layer->epsilon);
        if (multiply(one, &layer->gate_up, normed, part, NULL, both)) return 1;
        one->run->gate(both, both, type, part, inner); /* a row ends where none is still to be read */
        if (multiply(one, &layer->down, both, part, residual, past(one, to, (ptrdiff_t)start * width))) return 1;
    }
    return 0;
}

/* The states `to` after layers[first .. last - 1], which all are of one shape. Where not all queries are wanted,
 * or `inputs` are given, there is one layer. Returns 0, or 1 if memory runs out. */
int pardec_layers(const Layer *layers, int first, int last, const Forward *one, const void *from, const void *inputs,
                  void *to)
{
    ptrdiff_t rows = (ptrdiff_t)one->batch * one->queries, own = (ptrdiff_t)layers->heads * layers->dim;
    ptrdiff_t kv = (ptrdiff_t)layers->kv_heads * layers->dim;
    ptrdiff_t width = layers->out.rows, attention = rows * (4 * own + 3 * kv + width);
    ptrdiff_t mlp = (rows < together(one) ? rows : together(one)) * 2 * layers->down.length;
    void *room = malloc((2 * rows * width + (attention > mlp ? attention : mlp)) * (one->type ? 2 : 4));
    int failed = !room;
    for (int index = first; index < last && !failed; index++, from = to)
        failed = layer_of(one, layers + index, index, from, inputs, to, room);
    free(room);
    return failed;
}

/* After the last layer: a norm, and the head's matrix, or one of no rows where that runs elsewhere. The outputs of
 * `count` layers, in rising order, are copied side by side to rows of `tapped` [N, apart]. */
typedef struct {
    const void *norm;
    Matrix head;
    float epsilon;
    const int *taps;
    int count;
    void *tapped;
    ptrdiff_t apart;
} End;

/* All `count` layers, the norm and the head for the rows of one forward, all of which are wanted: the states after the
 * norm [N, E] -> normed, and logits [N, head.rows]. `states` [N, E] is room. Returns 0, or 1 if memory runs out. */
int pardec_chain(const Layer *layers, int count, const Forward *one, const End *end, const void *from, void *states,
                 void *normed, void *logits)
{
    int rows = one->batch * one->queries, width = layers->out.rows, first = 0;
    for (int n = 0; n <= end->count; n++) {
        int last = n < end->count ? end->taps[n] + 1 : count;
        if (last > first && pardec_layers(layers, first, last, one, from, NULL, states)) return 1;
        first = last, from = states;
        for (int r = 0; n < end->count && r < rows; r++)
            memcpy(past(one, end->tapped, r * end->apart + (ptrdiff_t)n * width),
                   past(one, states, (ptrdiff_t)r * width), width * (one->type ? 2 : 4));
    }
    one->run->norm(states, end->norm, normed, one->type, rows, width, end->epsilon);
    return end->head.rows ? multiply(one, &end->head, normed, rows, NULL, logits) : 0;
}
