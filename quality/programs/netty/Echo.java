// An echo server and its clients over Netty's io_uring transport; the clients check every byte.
//
// Echo MODE CONNECTIONS MESSAGES, where MODE is
//   plain        the transport as it comes: multishot accept and poll
//   buffers      receives into provided buffer rings, multishot
//   incremental  the same, buffers consumed piece by piece
//   zerocopy     with IORING_OP_SEND_ZC for all but the shortest messages
//   unix         over a Unix socket
//   datagrams    over UDP

import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.ServerChannel;
import io.netty.channel.socket.DatagramPacket;
import io.netty.channel.unix.DomainSocketAddress;
import io.netty.channel.uring.IoUring;
import io.netty.channel.uring.IoUringAdaptiveBufferRingAllocator;
import io.netty.channel.uring.IoUringBufferRingConfig;
import io.netty.channel.uring.IoUringChannelOption;
import io.netty.channel.uring.IoUringDatagramChannel;
import io.netty.channel.uring.IoUringDomainSocketChannel;
import io.netty.channel.uring.IoUringIoHandler;
import io.netty.channel.uring.IoUringIoHandlerConfig;
import io.netty.channel.uring.IoUringServerDomainSocketChannel;
import io.netty.channel.uring.IoUringServerSocketChannel;
import io.netty.channel.uring.IoUringSocketChannel;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

public final class Echo {
    private static final short GROUP = 1;

    private final String mode;
    private final int messages;
    private final EventLoopGroup loops;

    private Echo(String mode, int messages) {
        this.mode = mode;
        this.messages = messages;
        IoUringIoHandlerConfig config = new IoUringIoHandlerConfig();
        if (receivesIntoRings()) {
            config.setBufferRingConfig(IoUringBufferRingConfig.builder()
                    .bufferGroupId(GROUP)
                    .bufferRingSize((short) 16)
                    .batchSize(8)
                    .incremental(mode.equals("incremental"))
                    .allocator(new IoUringAdaptiveBufferRingAllocator())
                    .build());
        }
        loops = new MultiThreadIoEventLoopGroup(3, IoUringIoHandler.newFactory(config));
    }

    private boolean receivesIntoRings() {
        return mode.equals("buffers") || mode.equals("incremental");
    }

    private boolean overUnix() {
        return mode.equals("unix");
    }

    public static void main(String[] arguments) throws Exception {
        IoUring.ensureAvailability();
        System.out.println(IoUring.featureString());
        check(IoUring.isAcceptMultishotEnabled(), "no multishot accept");
        check(IoUring.isRecvMultishotEnabled(), "no multishot receive");
        check(IoUring.isPollAddMultishotEnabled(), "no multishot poll");
        check(IoUring.isRegisterBufferRingIncSupported(), "no incremental buffer rings");
        int connections = Integer.parseInt(arguments[1]);
        Echo echo = new Echo(arguments[0], Integer.parseInt(arguments[2]));
        try {
            if (echo.mode.equals("datagrams")) {
                echo.datagrams(connections);
            } else {
                echo.streams(connections);
            }
        } finally {
            echo.loops.shutdownGracefully(0, 20, TimeUnit.SECONDS).sync();
        }
        System.out.println("every byte came back");
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalStateException(otherwise);
        }
    }

    private void streams(int connections) throws Exception {
        Class<? extends ServerChannel> serverKind =
                overUnix() ? IoUringServerDomainSocketChannel.class : IoUringServerSocketChannel.class;
        Class<? extends Channel> clientKind = overUnix() ? IoUringDomainSocketChannel.class : IoUringSocketChannel.class;
        SocketAddress at = overUnix() ? new DomainSocketAddress("echo.socket") : local(0);
        Channel server = new ServerBootstrap()
                .group(loops)
                .channel(serverKind)
                .childHandler(handlers(ReturnAll::new))
                .bind(at).sync().channel();
        List<Client> clients = new ArrayList<>();
        List<ChannelFuture> closed = new ArrayList<>();
        for (int i = 0; i < connections; i++) {
            Client client = new Client(i, messages);
            clients.add(client);
            ChannelFuture connected = new Bootstrap()
                    .group(loops)
                    .channel(clientKind)
                    .handler(handlers(() -> client))
                    .connect(overUnix() ? at : server.localAddress());
            closed.add(connected.channel().closeFuture());
        }
        for (Client client : clients) {
            client.done.get(60, TimeUnit.SECONDS);
        }
        for (ChannelFuture one : closed) {
            check(one.await(60, TimeUnit.SECONDS), "a connection does not close");
        }
        check(server.close().await(60, TimeUnit.SECONDS), "the server does not close");
    }

    private interface Source {
        ChannelHandler get();
    }

    private ChannelInitializer<Channel> handlers(Source source) {
        return new ChannelInitializer<>() {
            @Override
            protected void initChannel(Channel channel) {
                if (receivesIntoRings()) {
                    channel.config().setOption(IoUringChannelOption.IO_URING_BUFFER_GROUP_ID, GROUP);
                }
                if (mode.equals("zerocopy")) {
                    channel.config().setOption(IoUringChannelOption.IO_URING_WRITE_ZERO_COPY_THRESHOLD, 64);
                }
                channel.pipeline().addLast(source.get());
            }
        };
    }

    private static SocketAddress local(int port) {
        return new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
    }

    /** The server's side. */
    private static final class ReturnAll extends ChannelInboundHandlerAdapter {
        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            context.write(message);
        }

        @Override
        public void channelReadComplete(ChannelHandlerContext context) {
            context.flush();
        }
    }

    /** Sends one message after the other, of all lengths; each has to come back before the next one. */
    private static final class Client extends ChannelInboundHandlerAdapter {
        final CompletableFuture<Void> done = new CompletableFuture<>();
        private final Random lengths;
        private final Random sent;
        private final Random expected;
        private int messages;
        private int missing;

        Client(int seed, int messages) {
            lengths = new Random(seed);
            sent = new Random(~seed);
            expected = new Random(~seed);
            this.messages = messages;
        }

        @Override
        public void channelActive(ChannelHandlerContext context) {
            next(context);
        }

        private void next(ChannelHandlerContext context) {
            if (messages-- == 0) {
                done.complete(null);
                context.close();
                return;
            }
            missing = 1 + lengths.nextInt(1 << (1 + lengths.nextInt(20)));
            // In pieces, so that vectored sends are among them.
            for (int left = missing; left > 0;) {
                ByteBuf piece = context.alloc().directBuffer();
                for (int i = Math.min(left, 50_000); i > 0; i--, left--) {
                    piece.writeByte(sent.nextInt());
                }
                context.write(piece).addListener(written -> {
                    if (!written.isSuccess()) {
                        done.completeExceptionally(written.cause());
                    }
                });
            }
            context.flush();
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            ByteBuf data = (ByteBuf) message;
            try {
                missing -= data.readableBytes();
                check(missing >= 0, "more came back than was sent");
                while (data.isReadable()) {
                    check(data.readByte() == (byte) expected.nextInt(), "something else came back");
                }
            } finally {
                data.release();
            }
            if (missing == 0) {
                next(context);
            }
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) {
            done.completeExceptionally(new IllegalStateException("closed with " + missing + " bytes missing"));
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            done.completeExceptionally(cause);
            context.close();
        }
    }

    private void datagrams(int clients) throws Exception {
        Bootstrap bootstrap = new Bootstrap().group(loops).channel(IoUringDatagramChannel.class);
        Channel server = bootstrap.clone().handler(new ChannelInboundHandlerAdapter() {
            @Override
            public void channelRead(ChannelHandlerContext context, Object message) {
                DatagramPacket packet = (DatagramPacket) message;
                context.writeAndFlush(new DatagramPacket(packet.content(), packet.sender()));
            }
        }).bind(local(0)).sync().channel();
        List<CompletableFuture<Void>> all = new ArrayList<>();
        for (int i = 0; i < clients; i++) {
            CompletableFuture<Void> done = new CompletableFuture<>();
            all.add(done);
            bootstrap.clone().handler(new Rallies((InetSocketAddress) server.localAddress(), messages, done)).bind(local(0));
        }
        for (CompletableFuture<Void> done : all) {
            done.get(60, TimeUnit.SECONDS);
        }
        check(server.close().await(60, TimeUnit.SECONDS), "the server does not close");
    }

    /** Sends datagrams that count down; each has to come back before the next one. */
    private static final class Rallies extends ChannelInboundHandlerAdapter {
        private final InetSocketAddress to;
        private final CompletableFuture<Void> done;
        private int left;

        Rallies(InetSocketAddress to, int messages, CompletableFuture<Void> done) {
            this.to = to;
            this.done = done;
            left = messages;
        }

        @Override
        public void channelActive(ChannelHandlerContext context) {
            send(context);
        }

        private void send(ChannelHandlerContext context) {
            ByteBuf content = context.alloc().directBuffer().writeInt(left).writeZero(left % 1200);
            context.writeAndFlush(new DatagramPacket(content, to));
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            DatagramPacket packet = (DatagramPacket) message;
            try {
                check(packet.content().readableBytes() == 4 + left % 1200, "a datagram of another length");
                check(packet.content().readInt() == left, "another datagram");
                check(packet.sender().equals(to), "from somebody else");
            } finally {
                packet.release();
            }
            if (--left > 0) {
                send(context);
            } else {
                done.complete(null);
                context.close();
            }
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            done.completeExceptionally(cause);
        }
    }
}
