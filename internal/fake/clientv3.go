package fake

import (
	"context"
	"reflect"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
)

// What the versions of clientv3 name differently, so that the etcd in memory compiles with each.

// Answered returns an answer of a watch with a header: a value before clientv3 3.7, then a pointer.
func Answered(h *pb.ResponseHeader, answer clientv3.WatchResponse) clientv3.WatchResponse {
	setHeader(&answer.Header, h)
	return answer
}

func setHeader[H any](field *H, h *pb.ResponseHeader) {
	switch field := any(field).(type) {
	case **pb.ResponseHeader:
		*field = h
	case *pb.ResponseHeader:
		field.ClusterId, field.MemberId = h.ClusterId, h.MemberId
		field.Revision, field.RaftTerm = h.Revision, h.RaftTerm
	}
}

// Cancelled is the answer of a watch that ends for a reason. Before clientv3 3.7 its field is not
// exported.
func Cancelled(h *pb.ResponseHeader, reason string) clientv3.WatchResponse {
	answer := Answered(h, clientv3.WatchResponse{Canceled: true})
	field := reflect.ValueOf(&answer).Elem().FieldByNameFunc(func(name string) bool {
		return name == "CancelReason" || name == "cancelReason"
	})
	reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem().SetString(reason)
	return answer
}

// watchOptions is what the options of a watch ask for, beside its range and revision.
type watchOptions interface {
	IsFilterPut() bool
	IsFilterDelete() bool
	IsPrevKV() bool
	IsCreatedNotify() bool
	IsProgressNotify() bool
}

// optionsIn returns the options in the operation of a watch, which tells them since clientv3 3.7.
func optionsIn(op clientv3.Op) watchOptions {
	if options, ok := any(op).(watchOptions); ok {
		return options
	}
	return fields{reflect.ValueOf(op)}
}

// fields reads the options from the fields of an Op.
type fields struct{ op reflect.Value }

func (f fields) IsFilterPut() bool      { return f.op.FieldByName("filterPut").Bool() }
func (f fields) IsFilterDelete() bool   { return f.op.FieldByName("filterDelete").Bool() }
func (f fields) IsPrevKV() bool         { return f.op.FieldByName("prevKV").Bool() }
func (f fields) IsCreatedNotify() bool  { return f.op.FieldByName("createdNotify").Bool() }
func (f fields) IsProgressNotify() bool { return f.op.FieldByName("progressNotify").Bool() }

// Lacking returns a generated client, by its constructor, of a service that the server does not
// have. What it needs ends with a client of clientv3.
func Lacking[C any](client *clientv3.Client, constructor any) C {
	if newClient, ok := constructor.(func(grpc.ClientConnInterface) C); ok {
		return newClient(absent{})
	}
	return constructor.(func(*grpc.ClientConn) C)(Nowhere(client.Ctx())) // before clientv3 3.7
}

// absent is a connection without any method.
type absent struct{}

func (absent) Invoke(_ context.Context, method string, _, _ any, _ ...grpc.CallOption) error {
	return lacks(method)
}

func (absent) NewStream(
	_ context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return nil, lacks(method)
}

// Nowhere is a connection of gRPC that leads nowhere, and so has no method. It ends with ctx.
func Nowhere(ctx context.Context) *grpc.ClientConn {
	conn, err := grpc.Dial("nowhere:///", // gRPC 1.59 has no NewClient
		grpc.WithResolvers(manual.NewBuilderWithScheme("nowhere")),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(_ context.Context, method string, _, _ any, _ *grpc.ClientConn,
			_ grpc.UnaryInvoker, _ ...grpc.CallOption,
		) error {
			return lacks(method)
		}),
		grpc.WithStreamInterceptor(func(_ context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn,
			method string, _ grpc.Streamer, _ ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			return nil, lacks(method)
		}))
	if err != nil {
		panic(err) // none of these options can be refused
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return conn
}

// lacks is the answer of a method that the server does not have.
func lacks(method string) error {
	return status.Error(codes.Unimplemented, "the etcd in memory does not have "+method+
		": test that with a real etcd")
}
