use super::*;

/// A server that sends back what it gets.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    address
}

async fn setup(delay: Duration) -> (Proxy, TcpStream) {
    let target = echo().await.to_string();
    let proxy = Proxy::start("127.0.0.1:0", &target, delay).await.expect("loopback");
    let stream = TcpStream::connect(proxy.address()).await.expect("accepted");
    (proxy, stream)
}

async fn round_trip(stream: &mut TcpStream) -> io::Result<u8> {
    stream.write_all(&[7]).await?;
    stream.read_u8().await
}

#[tokio::test]
async fn hands_on_after_the_delay_and_counts() {
    let delay = Duration::from_millis(30);
    let (proxy, mut stream) = setup(delay).await;
    let before = Instant::now();
    assert_eq!(round_trip(&mut stream).await.expect("handed on"), 7);
    assert!(before.elapsed() >= 2 * delay, "twice the one-way delay at least");
    let traffic = proxy.traffic();
    assert_eq!((traffic.up_bytes, traffic.down_bytes, traffic.connections), (1, 1, 1));
}

#[tokio::test]
async fn a_cut_resets_and_refuses_until_healed() {
    let (proxy, mut stream) = setup(Duration::ZERO).await;
    round_trip(&mut stream).await.expect("handed on");
    proxy.cut();
    round_trip(&mut stream).await.expect_err("reset");
    let mut refused = TcpStream::connect(proxy.address()).await.expect("the listener is up");
    round_trip(&mut refused).await.expect_err("reset at once");
    proxy.heal();
    let mut again = TcpStream::connect(proxy.address()).await.expect("accepted");
    round_trip(&mut again).await.expect("handed on");
}

#[tokio::test]
async fn a_stall_holds_and_loses_nothing() {
    let (proxy, mut stream) = setup(Duration::ZERO).await;
    assert_eq!(proxy.control("stall"), "ok\n");
    stream.write_all(b"held").await.expect("the proxy takes it");
    let mut bytes = [0; 4];
    let early =
        tokio::time::timeout(Duration::from_millis(50), stream.read_exact(&mut bytes)).await;
    assert!(early.is_err(), "nothing comes while stalled");
    assert_eq!(proxy.control("heal"), "ok\n");
    stream.read_exact(&mut bytes).await.expect("handed on");
    assert_eq!(&bytes, b"held");
    assert!(proxy.control("dance").starts_with("error"));
}

#[tokio::test]
async fn a_torn_line_hands_on_half_of_a_chunk_and_the_rest_when_healed() {
    let (proxy, mut stream) = setup(Duration::ZERO).await;
    round_trip(&mut stream).await.expect("handed on");
    proxy.set_line(Line::Torn);
    stream.write_all(b"half and half").await.expect("the proxy takes it");
    // Half of what went up, and of that again half came back.
    let mut bytes = [0; 13];
    stream.read_exact(&mut bytes[..3]).await.expect("a part is handed on");
    let early =
        tokio::time::timeout(Duration::from_millis(50), stream.read_exact(&mut bytes[3..])).await;
    assert!(early.is_err(), "the rest is held");
    proxy.heal();
    let mut rest = vec![0; 10];
    stream.read_exact(&mut rest).await.expect("handed on");
    assert_eq!([&bytes[..3], &rest].concat(), b"half and half");
}
