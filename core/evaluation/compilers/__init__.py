"""Real compilers without a GPU: Triton to PTX or AMD assembly, nvcc and g++ for CUDA C++, and what their words mean."""
