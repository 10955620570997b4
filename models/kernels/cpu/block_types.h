/* The block-quantized types of GGUF files, and the panels that they are packed into; see blocks.py. */

#define WIDTH 32                /* rows of a panel */
#define GROUP 32                /* columns of a group */
#define SUPER 8                 /* groups that share a scale of their scales, in the types called K */

/* By their numbers in blocks.py. */
enum { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q4_K, Q5_K, Q6_K };
