package machine

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"testing"
)

// Part is a directory of this host that the guest has as /opt/lab/TARGET. A file of a later part replaces one of an earlier part.
type Part struct {
	Target, Source string
}

// Payload packs directories into the second disk: the guest unpacks it into /opt/lab at each boot. It is a bare tar file,
// which a block device carries as it is.
func Payload(t *testing.T, parts ...Part) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "payload.tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for _, p := range parts {
		if err := pack(w, p.Target, p.Source); err != nil {
			t.Fatalf("cannot pack %s for the guest: %v", p.Source, err)
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return file
}

func pack(w *tar.Writer, target, source string) error {
	return filepath.WalkDir(source, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(p); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		h.Name = path.Join(target, filepath.ToSlash(rel))
		if rel == "." {
			h.Mode = 0o755 // The directory of a test is closed to others; its copy in the guest must not be.
		}
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "root", "root"
		if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
}
