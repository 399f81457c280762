package etcdlocktusd_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/etcdlock/etcdlock"
	etcdlocktusd "github.com/etcdlock/etcdlock/adapters/tusd"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// newHandler returns the handler of one of several machines that share a storage.
func newHandler(session *etcdlock.Session, store filestore.FileStore) (*handler.Handler, error) {
	locker, err := etcdlocktusd.NewLocker(session, "uploads/")
	if err != nil {
		return nil, err
	}
	composer := handler.NewStoreComposer()
	store.UseIn(composer)
	locker.UseIn(composer) // after the store, which may bring a locker of its own
	return handler.NewHandler(handler.Config{BasePath: "/files/", StoreComposer: composer})
}

// serve serves uploads until ctx ends. It closes the session last: until the open requests have
// saved what arrived, no other machine may get their locks.
func serve(
	ctx context.Context, listener net.Listener, h *handler.Handler, session *etcdlock.Session,
) error {
	requests, interrupt := context.WithCancelCause(context.Background())
	server := &http.Server{
		Handler:     http.StripPrefix("/files/", h),
		BaseContext: func(net.Listener) context.Context { return requests },
	}
	server.RegisterOnShutdown(func() { interrupt(handler.ErrServerShutdown) })
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() { stopped <- server.Shutdown(context.Background()) })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return errors.Join(<-stopped, session.Close(context.Background()))
}

// An upload is made on one machine, and read on another one.
func Example() {
	etcd, err := etcdlocktest.Start()
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	dir, err := os.MkdirTemp("", "uploads")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var machines []*handler.Handler
	for range 2 {
		session, err := etcdlock.NewSession(etcd.Client())
		if err != nil {
			log.Fatal(err)
		}
		defer session.Close(context.Background())
		h, err := newHandler(session, filestore.New(dir))
		if err != nil {
			log.Fatal(err)
		}
		machines = append(machines, h)
	}
	create := httptest.NewRequest(http.MethodPost, "http://tus.example/", nil)
	create.Header.Set("Tus-Resumable", "1.0.0")
	create.Header.Set("Upload-Length", "300")
	made := httptest.NewRecorder()
	machines[0].ServeHTTP(made, create)
	fmt.Println(made.Code)

	id := made.Header().Get("Location")[len("http://tus.example/files/"):]
	ask := httptest.NewRequest(http.MethodHead, "http://tus.example/"+id, nil)
	ask.Header.Set("Tus-Resumable", "1.0.0")
	told := httptest.NewRecorder()
	machines[1].ServeHTTP(told, ask)
	fmt.Println(told.Code, "offset", told.Header().Get("Upload-Offset"))
	// Output:
	// 201
	// 200 offset 0
}
