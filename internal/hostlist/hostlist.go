package hostlist

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The bounds of a list. A range is refused before it is expanded, and a name that is written twice counts twice.
const (
	MaxHosts = 4096
	maxName  = 255 // of a name in the DNS, RFC 1035
	maxRange = 9   // digits of a number
)

var errTooMany = fmt.Errorf("it names more than %d hosts", MaxHosts)

// Parse reads names with commas between them. Brackets have numbers and ranges, as in node[01-16,20]: numbers are as wide as the first of
// their range is written. A host that is named again is left out.
func Parse(text string) ([]string, error) {
	var s set
	if err := s.add(text); err != nil {
		return nil, err
	}
	return s.names, nil
}

// ParseFile reads a file with names as Parse reads them in each line. A # begins a comment.
func ParseFile(text string) ([]string, error) {
	var s set
	n := 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if err := s.add(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if len(s.names) == 0 {
		return nil, errors.New("it names no host")
	}
	return s.names, nil
}

// set are names in the order in which they were first written.
type set struct {
	read  int
	names []string
	has   map[string]bool
}

func (s *set) add(text string) error {
	words, err := split(text)
	if err != nil {
		return err
	}
	for _, word := range words {
		names, err := expand(strings.TrimSpace(word))
		if err != nil {
			return err
		}
		if s.read += len(names); s.read > MaxHosts {
			return errTooMany
		}
		for _, name := range names {
			if err := check(name); err != nil {
				return err
			}
			if s.has[name] {
				continue
			}
			if s.has == nil {
				s.has = map[string]bool{}
			}
			s.has[name] = true
			s.names = append(s.names, name)
		}
	}
	return nil
}

// split divides at the commas outside of brackets.
func split(text string) ([]string, error) {
	var words []string
	from, inside := 0, false
	for i, c := range []byte(text) {
		switch {
		case c == '[' && inside, c == ']' && !inside:
			return nil, fmt.Errorf("%q has a bracket without the other one", text)
		case c == '[', c == ']':
			inside = c == '['
		case c == ',' && !inside:
			words = append(words, text[from:i])
			from = i + 1
		}
	}
	if inside {
		return nil, fmt.Errorf("%q has a bracket without the other one", text)
	}
	return append(words, text[from:]), nil
}

// expand writes out the brackets of one word.
func expand(word string) ([]string, error) {
	names := []string{""}
	for word != "" {
		plain, rest, found := strings.Cut(word, "[")
		numbers := []string{""}
		if found {
			var err error
			within, after, _ := strings.Cut(rest, "]")
			if numbers, err = ranges(within); err != nil {
				return nil, fmt.Errorf("%q: %w", "["+within+"]", err)
			}
			rest = after
		}
		if len(names)*len(numbers) > MaxHosts {
			return nil, errTooMany
		}
		longer := make([]string, 0, len(names)*len(numbers))
		for _, name := range names {
			for _, number := range numbers {
				if len(name)+len(plain)+len(number) > maxName {
					return nil, fmt.Errorf("a name has more than %d characters", maxName)
				}
				longer = append(longer, name+plain+number)
			}
		}
		names, word = longer, rest
	}
	return names, nil
}

// ranges reads what is in brackets.
func ranges(text string) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		low, errLow := number(first)
		high, errHigh := number(last)
		switch {
		case errLow != nil || errHigh != nil:
			return nil, errors.New("it is no list of numbers and ranges, as in [01-16,20]")
		case high < low:
			return nil, fmt.Errorf("the range %s ends before it begins", part)
		case high-low >= MaxHosts-len(out):
			return nil, errTooMany
		}
		for n := low; n <= high; n++ {
			out = append(out, fmt.Sprintf("%0*d", len(first), n))
		}
	}
	return out, nil
}

func number(text string) (int, error) {
	if text == "" || len(text) > maxRange || strings.Trim(text, "0123456789") != "" {
		return 0, errors.New("no number")
	}
	return strconv.Atoi(text)
}

// check refuses what is no name of a host. ssh reads a word that begins with - as an option, and one of its options runs a program.
func check(name string) error {
	user, host, isUser := strings.Cut(name, "@")
	if !isUser {
		user, host = "", name
	}
	switch {
	case name == "":
		return errors.New("a name is empty")
	case len(name) > maxName:
		return fmt.Errorf("a name has more than %d characters", maxName)
	case host == "" || isUser && user == "":
		return fmt.Errorf("%q names no host", name)
	case user != "" && user[0] == '-' || host[0] == '-':
		return fmt.Errorf("%q begins with -, as an option of ssh does", name)
	}
	for _, c := range []byte(name) {
		isLetter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !isLetter && (c < '0' || c > '9') && !strings.ContainsRune("._-:%@", rune(c)) {
			return fmt.Errorf("%q has a character that no name of a host has", name)
		}
	}
	if strings.Contains(host, "@") {
		return fmt.Errorf("%q has two @", name)
	}
	return nil
}
