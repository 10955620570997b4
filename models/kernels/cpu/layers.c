/* Successive layers of a decoder as one call of the kernels in C: what lies between two kernels when PyTorch calls
 * them, tensors and views and the choice of a version, takes as long as a small one.
 *
 *     h += out(attention(norm(h))); h += down(silu(gate(n)) * up(n)), n = norm(h)
 *
 * Each kernel is the function that PyTorch's call would run, so that the result has the same bits.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

#define PART 288                /* rows for each thread: whole tiles of all kernels */

enum { BLOCKS, PANELS, INT8, ROWS }; /* layouts of a matrix: of blocks.c, panels.c and int8.c, and row by row */

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
    int (*rows)(int, const void *, const int64_t *, int, int, float *);
} Kernels;

/* Rows of a matrix that are of one type; `kind` is that of blocks.c or panels.c, `scale` that of int8.c, and `apart`
 * that of panels.c, or the distance between rows. */
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

/* x [count, length] @ w.T + base [count, rows] (NULL: the bias) -> out. */
static int multiply(const Forward *one, const Matrix *w, const void *x, int count, const void *base, void *out)
{
    ptrdiff_t apart = base ? w->rows : 0, done = 0;
    if (!base) base = w->bias;
    for (const Section *part = w->sections; part < w->sections + w->count; done += part->rows, part++) {
        int threads = threads_for(one, (ptrdiff_t)count * part->rows * w->length), failed;
        const void *onto = base ? past(one->type, base, done) : NULL;
        void *to = past(one->type, out, done);
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
        memcpy(past(one->type, out, n * width), past(one->type, x, row * width), width * bytes_of(one->type));
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
    void *attended = room, *normed = past(one->type, attended, (ptrdiff_t)count * width);
    void *qkv = past(one->type, normed, (ptrdiff_t)rows * width), *both = qkv; /* the MLP begins after attention */
    void *q = past(one->type, qkv, rows * fused), *keys = past(one->type, q, rows * own);
    void *read = past(one->type, keys, rows * (ptrdiff_t)kv * dim), *some = past(one->type, read, count * own);
    if (!inputs) {
        one->run->norm(from, layer->attention_norm, normed, type, rows, width, layer->epsilon);
        inputs = normed;
    }
    if (multiply(one, &layer->qkv, inputs, rows, NULL, qkv)) return 1;
    for (int n = 0; layer->q_norm && n < rows; n++) {
        void *at = past(one->type, qkv, n * fused), *after = past(one->type, at, own);
        one->run->norm(at, layer->q_norm, at, type, heads, dim, layer->epsilon);
        one->run->norm(after, layer->k_norm, after, type, kv, dim, layer->epsilon);
    }
    ptrdiff_t apart = (ptrdiff_t)kv * dim;
    ptrdiff_t alone[6] = {one->queries * apart, apart, dim, one->queries * fused, fused, dim};
    const ptrdiff_t *steps = one->k ? one->steps : alone;
    const void *k = one->k ? one->k[index] : keys, *v = one->k ? one->v[index] : past(one->type, qkv, own + apart);
    one->run->turn(type, qkv, fused, one->cosine, one->sine, one->apart, q, past(one->type, k, one->first * steps[1]),
                   one->k ? past(one->type, v, one->first * steps[4]) : NULL, steps, one->batch, one->queries, heads,
                   kv, dim, one->turned);
    const void *asking = one->picked ? picked_of(one, q, own, some) : past(one->type, q, (rows - count) * own);
    if (attention(one, layer, asking, k, v, steps, read)) return 1;
    if (one->picked) from = picked_of(one, from, width, past(one->type, some, count * own));
    if (multiply(one, &layer->out, read, count, from, attended)) return 1;
    for (int start = 0, some = together(one); start < count; start += some) {
        int part = count - start < some ? count - start : some;
        const void *residual = past(one->type, attended, (ptrdiff_t)start * width);
        one->run->norm(residual, layer->mlp_norm, normed, type, part, width, layer->epsilon);
        if (multiply(one, &layer->gate_up, normed, part, NULL, both)) return 1;
        one->run->gate(both, both, type, part, inner); /* a row ends where none is still to be read */
        if (multiply(one, &layer->down, both, part, residual, past(one->type, to, (ptrdiff_t)start * width))) return 1;
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
    void *room = malloc((2 * rows * width + (attention > mlp ? attention : mlp)) * bytes_of(one->type));
    int failed = !room;
    for (int index = first; index < last && !failed; index++, from = to)
        failed = layer_of(one, layers + index, index, from, inputs, to, room);
    free(room);
    return failed;
}

/* Embeddings, in blocks or row by row, that are multiplied by `scale`. */
typedef struct { Matrix rows; float scale; } Table;

/* The embedding of a token -> out. Returns whether there is none. */
static int embed(const Forward *one, const Table *table, int64_t token, float *out)
{
    const Section *part = table->rows.sections;
    int width = table->rows.length;
    if (token < 0 || token >= table->rows.rows) return 1;
    for (; token >= part->rows; part++) token -= part->rows;
    if (table->rows.layout == BLOCKS) one->run->rows(part->kind, part->weights, &token, 1, width, out);
    else memcpy(out, (const float *)part->weights + token * part->apart, width * sizeof *out);
    for (int n = 0; table->scale != 1 && n < width; n++) out[n] *= table->scale;
    return 0;
}

/* After the last layer: a norm, and the head's matrix, or one of no rows where that runs elsewhere. The outputs of
 * `count` layers, in rising order, are copied side by side to rows of `tapped` [N, apart]. */
typedef struct {
    Table table;                /* where the forward begins with tokens */
    const void *norm;
    Matrix head;
    float epsilon;
    const int *taps;
    int count;
    void *tapped;
    ptrdiff_t apart;
} End;

/* All `count` layers, the norm and the head for the rows of one forward, all of which are wanted: the states after the
 * norm [N, E] -> normed, and logits [N, head.rows]. It begins with `from` [N, E], or where that is NULL with float32
 * embeddings of `tokens` [N]. `states` [N, E] is room. Returns 0, 1 if memory runs out, or -1 for what is no token. */
int pardec_chain(const Layer *layers, int count, const Forward *one, const End *end, const int64_t *tokens,
                 const void *from, void *states, void *normed, void *logits)
{
    int rows = one->batch * one->queries, width = layers->out.rows, first = 0;
    for (int r = 0; !from && r < rows; r++)
        if (embed(one, &end->table, tokens[r], (float *)states + (ptrdiff_t)r * width)) return -1;
    if (!from) from = states;
    for (int n = 0; n <= end->count; n++) {
        int last = n < end->count ? end->taps[n] + 1 : count;
        if (last > first && pardec_layers(layers, first, last, one, from, NULL, states)) return 1;
        first = last, from = states;
        for (int r = 0; n < end->count && r < rows; r++)
            memcpy(past(one->type, end->tapped, r * end->apart + (ptrdiff_t)n * width),
                   past(one->type, states, (ptrdiff_t)r * width), width * bytes_of(one->type));
    }
    one->run->norm(states, end->norm, normed, one->type, rows, width, end->epsilon);
    return end->head.rows ? multiply(one, &end->head, normed, rows, NULL, logits) : 0;
}

/* What makes pairs of a token and the state before it (EAGLE): one layer without a norm before attention reads, in each
 * pair, the embedding and the state after their norms, or `joined` of both where these have none. */
typedef struct {
    Table table;
    float epsilon;
    const float *embed_norm, *state_norm;
    Matrix joined;
    const float *norm;          /* before the head; NULL: there is none */
    Matrix head;
    const int64_t *ids;         /* the token of each row of the head; NULL: they are in order */
    int norm_residual, norm_output;     /* the layer adds to the state after its norm; the head's norm is fed back */
} Pairs;

/* The highest of x and the first place where it stands; NaN, and some place, where one of x is NaN. */
static float highest_at(const float *x, int width, int *at)
{
    unsigned sound = where_equal(spread(0), spread(0));
    int n = 0;
    for (; n + LANES <= width; n += LANES) sound &= where_equal(*(const vec *)(x + n), *(const vec *)(x + n));
    int whole = sound == where_equal(spread(0), spread(0));
    for (; n < width; n++) whole &= x[n] == x[n];
    float top = whole ? highest_of(x, width) : NAN;
    *at = index_of(x, top, width);
    return top;
}

/* Drafts `count` tokens, the likeliest after each pair, and appends them to the `fed` ones of `tokens` [fed + count].
 * `states` [fed, E] are those before the fed tokens; before a drafted one it is the layer's. The pairs take the slots
 * from `one->first` on, at least the second, where the rotations begin, too. `highest`: the sum of the highest logits.
 * Returns 0, 1 if memory runs out, or -1 for what is no token. */
int pardec_draft(const Layer *layer, Forward *one, const Pairs *by, const float *states, int fed, int count,
                 int64_t *tokens, float *highest)
{
    int width = layer->out.rows, failed = 0, at;
    float *room = malloc(((ptrdiff_t)fed * 3 * width + 2 * width + by->head.rows) * sizeof *room);
    if (!room) return 1;
    float *pairs = room, *both = pairs + (ptrdiff_t)fed * 2 * width, *state = both + (ptrdiff_t)fed * width;
    float *normed = state + width, *logits = normed + width;
    *highest = 0;
    for (int n = 0, rows = fed; n < count; n++, rows = 1) {
        for (int r = 0; r < rows; r++) {
            float *embedded = pairs + (ptrdiff_t)r * 2 * width, *before = embedded + width;
            const float *known = states + (ptrdiff_t)r * width;
            int64_t token = tokens[n ? fed + n - 1 : r];
            if (token < 0) memset(embedded, 0, width * sizeof *embedded); /* a condition stands there */
            else if (embed(one, &by->table, token, embedded)) failed = -1;
            if (by->embed_norm) {
                one->run->norm(embedded, by->embed_norm, embedded, FLOAT32, 1, width, by->epsilon);
                one->run->norm(known, by->state_norm, before, FLOAT32, 1, width, by->epsilon);
            } else memcpy(before, known, width * sizeof *known);
        }
        const float *inputs = pairs, *from = states + (ptrdiff_t)(rows - 1) * width;
        if (!by->embed_norm) {
            failed = failed ? failed : multiply(one, &by->joined, pairs, rows, NULL, both);
            inputs = both, from = both + (ptrdiff_t)(rows - 1) * width;
        } else if (by->norm_residual) from = pairs + (ptrdiff_t)(2 * rows - 1) * width;
        one->queries = rows, one->wanted = 1, one->slots = one->first + rows;
        if (failed || (failed = pardec_layers(layer, 0, 1, one, from, inputs, state))) break;
        if (by->norm) one->run->norm(state, by->norm, normed, FLOAT32, 1, width, by->epsilon);
        if ((failed = multiply(one, &by->head, by->norm ? normed : state, 1, NULL, logits))) break;
        *highest += highest_at(logits, by->head.rows, &at);
        tokens[fed + n] = by->ids ? by->ids[at] : at;
        states = by->norm_output ? normed : state;
        one->first += rows, one->cosine += (ptrdiff_t)rows * one->turned, one->sine += (ptrdiff_t)rows * one->turned;
    }
    free(room);
    return failed;
}
