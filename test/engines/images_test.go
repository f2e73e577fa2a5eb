//go:build engines

package engines

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/machine"
)

// Names of the images: no registry has them.
const (
	pauseImage = "docker.io/lab/pause:1"
	workImage  = "docker.io/lab/work:1"
	// driverImage is built from the Containerfile, as a site does it for the DaemonSet.
	driverImage = "docker.io/lab/gpushare-kubelet:1"
)

// images writes an archive of images, in the layout of OCI, with the program of test/engines/pod as /pod: one is what keeps the
// namespaces of a pod, the other one what its containers run. The image of the driver is in an archive of its own.
func images(t *testing.T, driver string) string {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(machine.Program(t, "github.com/gpushare/gpushare/test/engines/pod"), "pod"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "images.tar"))
	if err != nil {
		t.Fatal(err)
	}
	a := &archive{w: tar.NewWriter(f), has: map[string]bool{}}
	layer := a.layer(program)
	a.file("oci-layout", a.json(map[string]string{"imageLayoutVersion": "1.0.0"}))
	index := map[string]any{"schemaVersion": 2, "manifests": []any{
		a.image(pauseImage, layer, "/pod", "wait"),
		a.image(workImage, layer, "/pod", "show"),
	}}
	a.file("index.json", a.json(index))
	if err := errors.Join(a.err, a.w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	built(t, driver, filepath.Join(dir, "driver.tar"))
	return dir
}

// built builds the image of the driver with buildah, into an archive.
func built(t *testing.T, driver, file string) {
	t.Helper()
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Fatal("buildah is not here, and the image of the driver is built with it: install the package buildah")
	}
	store := t.TempDir()
	buildah := func(args ...string) {
		t.Helper()
		own := []string{"--root", filepath.Join(store, "root"), "--runroot", filepath.Join(store, "run"), "--storage-driver", "vfs"}
		if out, err := exec.CommandContext(t.Context(), "buildah", append(own, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("buildah %v: %v\n%s", args, err, out)
		}
	}
	containerfile, err := filepath.Abs("../../kubelet/deploy/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	buildah("build", "-t", driverImage, "-f", containerfile, driver)
	_, tag, _ := strings.Cut(driverImage, ":")
	buildah("push", driverImage, "oci-archive:"+file+":"+tag)
}

// archive is an image layout in a tar file. It keeps its first error.
type archive struct {
	w   *tar.Writer
	has map[string]bool // blobs
	err error
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// layer has the program, and the directories that are mounted into.
func (a *archive) layer(program []byte) descriptor {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		err := w.WriteHeader(&h)
		_, failed := w.Write(content)
		a.err = errors.Join(a.err, err, failed)
	}
	for _, d := range []string{"dev", "etc", "proc", "run", "sys", "tmp", "usr", "usr/bin", "var", "var/lib"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755}, nil)
	}
	add(tar.Header{Typeflag: tar.TypeReg, Name: "pod", Mode: 0o755}, program)
	a.err = errors.Join(a.err, w.Close())
	return a.blob("application/vnd.oci.image.layer.v1.tar", b.Bytes())
}

func (a *archive) image(name string, layer descriptor, command ...string) descriptor {
	config := a.blob("application/vnd.oci.image.config.v1+json", a.json(map[string]any{
		"architecture": "amd64",
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": command, "Env": []string{"PATH=/usr/local/bin:/usr/bin:/bin"}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
	}))
	manifest := a.blob("application/vnd.oci.image.manifest.v1+json", a.json(map[string]any{
		"schemaVersion": 2,
		"mediaType":     "application/vnd.oci.image.manifest.v1+json",
		"config":        config,
		"layers":        []descriptor{layer},
	}))
	manifest.Annotations = map[string]string{"io.containerd.image.name": name}
	return manifest
}

func (a *archive) blob(kind string, content []byte) descriptor {
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	if !a.has[digest] {
		a.has[digest] = true
		a.file("blobs/sha256/"+digest, content)
	}
	return descriptor{MediaType: kind, Digest: "sha256:" + digest, Size: len(content)}
}

func (a *archive) file(name string, content []byte) {
	err := a.w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))})
	_, failed := a.w.Write(content)
	a.err = errors.Join(a.err, err, failed)
}

func (a *archive) json(v any) []byte {
	b, err := json.Marshal(v)
	a.err = errors.Join(a.err, err)
	return b
}
