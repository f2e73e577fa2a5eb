package enter

import (
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// parse reads the command line of a run. ok is false for all that has another meaning, or none: the command line reads that.
func parse(args []string) (r api.LeaseRequest, command []string, silent, ok bool) {
	if len(args) < 2 || args[0] != "run" {
		return r, nil, false, false
	}
	args = args[1:]
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		word := args[0]
		args = args[1:]
		if word == "--" {
			break
		}
		switch word {
		case "-q", "--quiet":
			silent = true
			continue
		}
		name, value, joined := strings.Cut(word, "=")
		into := valueOf(&r, name)
		switch {
		case into == nil && name != "--wait":
			return r, nil, false, false
		case name == "--wait" && !joined:
			return r, nil, false, false // Its value may be the next word, and may be left out.
		case !joined && len(args) == 0:
			return r, nil, false, false
		case !joined:
			value, args = args[0], args[1:]
		case name == "-t":
			return r, nil, false, false // For a short flag the sign is a part of the value, or not.
		}
		if into == nil {
			d, err := api.ParseDuration(value)
			if err != nil {
				return r, nil, false, false
			}
			r.Wait = &d
			continue
		}
		*into = value
	}
	if len(args) == 0 {
		return r, nil, false, false
	}
	// The daemon only shows it: this process executes the whole, which may be longer than a request.
	r.Command = text.ShortCommand(args, text.KeptCommand)
	return r, args, silent, true
}

// valueOf is what a flag sets; nil for another flag.
func valueOf(r *api.LeaseRequest, flag string) *string {
	switch flag {
	case "-t", "--tenant":
		return &r.Tenant
	case "--grant":
		return &r.Grant
	case "--kind":
		return &r.Kind
	}
	return nil
}
