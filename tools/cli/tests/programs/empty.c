/* A library that holds nothing. */
typedef int nothing;
