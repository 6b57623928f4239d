"""A strided convolution with a fifth of the multiplications. `plan` has its constant matrices."""
