package engine

// ring keeps the newest entries. A put costs the copy of one entry, on average of two.
type ring[T any] struct {
	most    int
	entries []T // the newest are last; up to most are older than the ring
}

func (r *ring[T]) put(v T) {
	if len(r.entries) == 2*r.most {
		r.entries = r.entries[:copy(r.entries, r.entries[r.most:])]
	}
	r.entries = append(r.entries, v)
}

// list returns the entries, the oldest first, until the next put.
func (r *ring[T]) list() []T { return r.entries[max(len(r.entries)-r.most, 0):] }

// random is a xorshift generator: small, fast, and the same on every machine.
type random struct{ state uint64 }

// newRandom returns the generator of a seed. Similar seeds give unrelated sequences.
func newRandom(seed uint64) random {
	// splitmix64; its result is 0 for one seed only, and a xorshift generator must not start with 0.
	z := seed + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	if z ^= z >> 31; z == 0 {
		z = 1
	}
	return random{z}
}

// float returns a number in [0, 1).
func (r *random) float() float64 {
	r.state ^= r.state << 13
	r.state ^= r.state >> 7
	r.state ^= r.state << 17
	return float64(r.state>>11) / (1 << 53)
}

// choose returns one of n, with a probability equal to its part of the weights.
func (r *random) choose(n int, weight func(i int) float64) int {
	var sum float64
	for i := range n {
		sum += weight(i)
	}
	at := r.float() * sum
	for i := range n {
		if at -= weight(i); at < 0 {
			return i
		}
	}
	return n - 1
}
