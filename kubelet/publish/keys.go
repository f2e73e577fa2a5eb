package publish

import "strings"

// ClaimOf is the uid of the claim whose lease has a key: kubernetes:UID:N, where N is a number. ok is false of other keys: another
// program than this one may be an engine of that name, and its leases are of no claim.
func ClaimOf(key string) (claim string, ok bool) {
	rest, ok := strings.CutPrefix(key, KeyPrefix)
	if !ok {
		return "", false
	}
	claim, number, ok := strings.Cut(rest, ":")
	return claim, ok && claim != "" && number != "" && strings.Trim(number, "0123456789") == ""
}
