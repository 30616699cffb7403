__kernel void zero(__global float* x) { x[get_global_id(0)] = 0.0f; }
