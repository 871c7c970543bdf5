// Stands for the GEMM before a symmetric all-reduce: writes its result into the channel, and knows of no epochs.

extern "C" __global__ void produce(unsigned char* __restrict__ channel, const unsigned short* __restrict__ result,
                                   unsigned long long at, unsigned int halves) {
  for (unsigned int i = threadIdx.x; i < halves; i += blockDim.x)
    reinterpret_cast<unsigned short*>(channel + at)[i] = result[i];
}
