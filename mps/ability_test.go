package mps

import (
	"strings"
	"testing"
)

func TestAbilities(t *testing.T) {
	none, early := Abilities{MaxClients: 48}, Abilities{OwnerOnly: true, MaxClients: 48}
	modern := Abilities{MultiUser: true, OwnerOnly: true, ServersOwnerOnly: true, MaxClients: 48}
	tests := []struct {
		name    string
		release Release
		want    Abilities
		unknown string
	}{
		{"535", Release{Driver: "535.261.03", Branch: 535, Early: true}, none, ""},
		{"550", Release{Driver: "550.163.01", Branch: 550, Early: true}, early, ""},
		{"555", Release{Driver: "555.58.02", Branch: 555}, early, ""},
		{"between 535 and 550", Release{Driver: "545.29.06", Branch: 545, Early: true}, none, ""},
		{"between 555 and 580", Release{Driver: "570.86.10", Branch: 570, CUDA: 12080}, early, ""},
		{"580", Release{CUDA: 13000}, modern, ""},
		{"between 580 and 595", Release{Driver: "590.48.01", Branch: 590, CUDA: 13010}, modern, ""},
		{"615", Release{CUDA: 13040}, Abilities{MultiUser: true, OwnerOnly: true, ServersOwnerOnly: true, MaxClients: 60}, ""},
		{"550 or older, without a version in its file", Release{Early: true}, none, ""},
		{"too new", Release{Driver: "620.1.0", Branch: 620, CUDA: 13050}, none, "620.1.0"},
		{"too new, by its CUDA version", Release{CUDA: 14000}, none, "CUDA 14.0"},
		{"too old", Release{Driver: "470.82.01", Branch: 470}, none, "470.82.01"},
		{"says nothing", Release{}, none, "of no known version"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, unknown := test.release.Abilities()
			if got != test.want || (unknown != "") != (test.unknown != "") || !strings.Contains(unknown, test.unknown) {
				t.Errorf("got %+v %q, want %+v and %q", got, unknown, test.want, test.unknown)
			}
		})
	}
}
