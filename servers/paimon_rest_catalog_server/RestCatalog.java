import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.apache.paimon.rest.RESTCatalogServer;
import org.apache.paimon.rest.auth.BearTokenAuthProvider;
import org.apache.paimon.rest.responses.ConfigResponse;

/** Arguments: the folder of the tables, the warehouse's name, the token, and the file for the server's URL. */
public class RestCatalog {
  public static void main(String[] arguments) throws Exception {
    String warehouse = arguments[1];
    RESTCatalogServer server =
        new RESTCatalogServer(
            arguments[0],
            new BearTokenAuthProvider(arguments[2]),
            new ConfigResponse(Map.of("warehouse", warehouse, "prefix", "paimon"), Map.of()),
            warehouse);
    server.start();
    Files.writeString(Path.of(arguments[3]), server.getUrl());
  }
}
