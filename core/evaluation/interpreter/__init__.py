"""The CPU tier's executor: aten operators and checked Triton kernels, interpreted over data no candidate ever sees."""
