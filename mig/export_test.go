package mig

// Empty tells whether the GPU already is as wanted.
func (r Result) Empty() bool {
	return r.Mode == nil && len(r.Complete) == 0 && len(r.Destroy) == 0 && len(r.Create) == 0
}
