package account

// Revalidate compares the files that are written with their names. What another program removed is lost; what is measured from now on is
// written to new files.
func (a *Account) Revalidate() (lost []string, err error) {
	s := a.opened.Load()
	if s == nil {
		return nil, nil
	}
	n := s.Removals()
	if a.removals.Swap(n) == n {
		return nil, nil
	}
	a.wake.Set()
	return []string{"the account of usage in " + a.Dir}, nil
}
