package attribution

// Ticks is how many clock ticks /proc counts in a second, on every Linux that NVIDIA has a driver for.
const Ticks = 100
