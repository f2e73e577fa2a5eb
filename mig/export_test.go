package mig

// Empty reports whether the GPU is already as desired.
func (r Result) Empty() bool {
	return r.Mode == nil && len(r.Complete) == 0 && len(r.Destroy) == 0 && len(r.Create) == 0
}
