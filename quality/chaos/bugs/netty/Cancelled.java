// Sends without copying, with Netty's io_uring transport. A send that was cancelled ends its connection.

import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.uring.IoUringChannelOption;
import io.netty.channel.uring.IoUringIoHandler;
import io.netty.channel.uring.IoUringServerSocketChannel;
import io.netty.channel.uring.IoUringSocketChannel;
import io.netty.util.ReferenceCountUtil;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.concurrent.TimeUnit;

public final class Cancelled {
    private static final int CONNECTIONS = 5;
    private static final int SENDS = 20;

    public static void main(String[] arguments) throws Exception {
        EventLoopGroup loops = new MultiThreadIoEventLoopGroup(1, IoUringIoHandler.newFactory());
        Channel server = new ServerBootstrap()
                .group(loops)
                .channel(IoUringServerSocketChannel.class)
                .childHandler(new Reader())
                .bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0)).sync().channel();
        for (int i = 0; i < CONNECTIONS; i++) {
            Channel client = new Bootstrap()
                    .group(loops)
                    .channel(IoUringSocketChannel.class)
                    .option(IoUringChannelOption.IO_URING_WRITE_ZERO_COPY_THRESHOLD, 0)
                    .handler(new ChannelInboundHandlerAdapter())
                    .connect(server.localAddress()).sync().channel();
            sendTo(client);
            if (!client.close().await(10, TimeUnit.SECONDS)) {
                throw new IllegalStateException("a connection does not close");
            }
        }
        loops.shutdownGracefully(0, 5, TimeUnit.SECONDS).await(10, TimeUnit.SECONDS);
        System.exit(0);
    }

    private static void sendTo(Channel client) throws InterruptedException {
        for (int i = 0; i < SENDS; i++) {
            // Two at a time: it is SENDMSG_ZC that sends several.
            client.write(zeros());
            if (!client.writeAndFlush(zeros()).await(500, TimeUnit.MILLISECONDS)) {
                return;
            }
        }
    }

    private static ByteBuf zeros() {
        return Unpooled.directBuffer(1000).writeZero(1000);
    }

    /** Reads, and forgets what it has read. */
    @ChannelHandler.Sharable
    private static final class Reader extends ChannelInboundHandlerAdapter {
        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            ReferenceCountUtil.release(message);
        }
    }
}
