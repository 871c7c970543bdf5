extern "C" __global__ void copy(const unsigned char* source, unsigned long long from, unsigned char* target,
                                unsigned long long to, unsigned int numel) {
  const unsigned short* const elements = reinterpret_cast<const unsigned short*>(source + from);
  unsigned short* const copies = reinterpret_cast<unsigned short*>(target + to);
  for (unsigned int i = 0; i < numel; ++i) copies[i] = elements[i];
}
