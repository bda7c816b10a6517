package faults

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// A token that has expired, and is then rotated in its file as kubelet does it.
func TestFaultTokenExpired(t *testing.T) {
	t.Parallel()
	name := "faults-token"
	s := begin(t, "service account token expired, then rotated", "refused with 401 until the new one is in the file")
	made := s.create(gated(name))
	fresh := s.boundToken(name)
	a := s.agentAt(name, s.proxy.URL, s.proxy.CA, s.expired(fresh))
	p := a.start()
	const refusal = "authentication: the API server does not accept the service account token: Unauthorized"
	line := p.awaitLine(refusal, func(line harness.LogLine) bool { return line.Check == "api" && strings.Contains(line.Error, refusal) })
	s.T.Log(line.Error, "- to try:", line.Remedy)
	s.True(untouched(s.Node(name), made))
	began := time.Now()
	file := filepath.Join(filepath.Dir(a.env["KUBECONFIG"]), "token")
	s.NoError(os.WriteFile(file+".new", []byte(fresh), 0o600))
	s.NoError(os.Rename(file+".new", file))
	refusedBefore := s.refused(name)
	s.once(p, made, began)
	s.LessOrEqual(s.refused(name)-refusedBefore, 1, "the old token was kept although it was refused")
}

func (s *suite) refused(node string) (n int) {
	for _, asked := range s.proxy.Asked(Read(node)) {
		if asked.Code == http.StatusUnauthorized {
			n++
		}
	}
	return n
}

// expired is the token as it was an hour before now, with a life of ten minutes: the API issues
// none that is over already, so it is signed here, with the key of the test cluster.
func (s *suite) expired(token string) string {
	s.T.Helper()
	parts := strings.Split(token, ".")
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	s.NoError(err)
	var claims map[string]any
	s.NoError(json.Unmarshal(payload, &claims))
	then := time.Now().Add(-time.Hour)
	claims["iat"], claims["nbf"], claims["exp"] = then.Unix(), then.Unix(), then.Add(10*time.Minute).Unix()
	payload, err = json.Marshal(claims)
	s.NoError(err)
	text, err := os.ReadFile(filepath.Join(s.Cluster.Dir, "pki", "service-account.key"))
	s.NoError(err)
	block, _ := pem.Decode(text)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	s.NoError(err)
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(payload)
	hash := sha256.Sum256([]byte(signed))
	r, z, err := ecdsa.Sign(rand.Reader, key, hash[:])
	s.NoError(err)
	signature := make([]byte, 64) // ES256: both numbers, 32 bytes each (RFC 7518, 3.4)
	r.FillBytes(signature[:32])
	z.FillBytes(signature[32:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}
