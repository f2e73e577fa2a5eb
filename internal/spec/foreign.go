package spec

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/gpushare/api"
)

// migConfigs is the key of a file of NVIDIA's MIG partition editor. Such a file has version: v1 too, so it looks like a spec with
// one unknown key.
const migConfigs = "mig-configs"

// foreign recognizes the files of other programs that share GPUs among texts with mistakes: what is wrong with them as a spec helps
// no reader. file is its name, for the hint.
func foreign(file string, data []byte, mistakes api.FieldErrors) error {
	if len(mistakes) == 0 || len(data) > MaxSize {
		return nil
	}
	for y := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var document yaml.Node
		if err := y.Decode(&document); err != nil || len(document.Content) == 0 {
			return nil // Also at the end: none of the documents is one of them.
		}
		if at := migPartedAt(document.Content[0]); at != nil {
			f := api.FieldError{
				File:    file,
				Line:    at.Line,
				Column:  at.Column,
				Message: "this is no spec, it is a file of NVIDIA's MIG partition editor (mig-parted)",
			}
			return &api.Error{
				Kind: api.KindInvalid, Message: f.Error(), Fields: api.FieldErrors{f},
				Hint: fmt.Sprintf("'gpushare mig convert %s' lists what it has, and with --label writes a spec", argument(file)),
			}
		}
	}
}

// migPartedAt is the key that shows such a file, or the config map of Kubernetes that contains one, also in a list.
func migPartedAt(top *yaml.Node) *yaml.Node {
	for i := 0; i+1 < len(top.Content) && top.Kind == yaml.MappingNode; i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		switch {
		case key.Value == migConfigs:
			return key
		case key.Value == "data" && value.Kind == yaml.MappingNode:
			for j := 1; j < len(value.Content); j += 2 {
				if strings.Contains(value.Content[j].Value, migConfigs+":") {
					return value.Content[j-1]
				}
			}
		case key.Value == "items" && value.Kind == yaml.SequenceNode:
			for _, item := range value.Content {
				if at := migPartedAt(item); at != nil {
					return at
				}
			}
		}
	}
	return nil
}

// argument is how a shell takes the name of a file that was read.
func argument(file string) string {
	switch {
	case file == "" || file == "-" || len(file) > 200:
		return "FILE"
	case strings.Trim(file, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./_-+") != "":
		return `"` + file + `"`
	}
	return file
}
