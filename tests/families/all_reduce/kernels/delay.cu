// Keeps a rank's stream busy, in the emulator's virtual time.

extern "C" __global__ void delay(unsigned int seconds) {
  for (unsigned int i = 0; i < seconds; ++i) __nanosleep(1000000000u);
}
